// What an answer that is an error says.

export async function message(answer: Response): Promise<string> {
  try {
    const said = (await answer.json()) as { error?: { message?: string } };
    if (said.error?.message) return said.error.message;
  } catch {
    // no JSON: a proxy's page, say
  }
  return `The server answered ${answer.status}.`;
}
