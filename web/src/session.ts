// The token that this tab asks with. Owns how it is got: a code in the address's fragment is good for one exchange, and
// the token lives in sessionStorage, never in a cookie. Talks to: /api/enter.
import { signal } from '@preact/signals';
import { isReport } from './api/kept';
import { message } from './api/refused';
import { codeOfAnother, mind } from './tabs';

const KEY = 'etude-token';

export type Entry = { state: 'in' } | { state: 'out'; why: string };
export const entry = signal<Entry>({ state: 'in' });
/** Whether this server may start agents. */
export const work = signal(false);

export const token = () => sessionStorage.getItem(KEY) ?? '';

export function left(why: string): void {
  sessionStorage.removeItem(KEY);
  entry.value = { state: 'out', why };
}

/** Come in with the code in the address, which then has it no longer; without one, by another tab of this browser. */
export async function enter(): Promise<void> {
  if (isReport) return;
  const found = new URLSearchParams(location.hash.slice(1));
  const code = found.get('code');
  if (code !== null) {
    history.replaceState(null, '', location.pathname + '#' + (found.get('to') ?? '/runs'));
    const why = await exchange(code);
    if (why !== null && !token()) return left(why);
  } else if (!token()) {
    const given = await codeOfAnother();
    if (given !== null) await exchange(given);
  }
  if (!token()) return left('This tab has not been let in yet.');
  work.value = sessionStorage.getItem(KEY + '-work') === '1';
  entry.value = { state: 'in' };
  mind(token);
}

/** Get the token for a code; null, or why it was refused. */
async function exchange(code: string): Promise<string | null> {
  const answer = await fetch('/api/enter', {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ code }),
  });
  if (!answer.ok) return message(answer);
  const said = (await answer.json()) as { token: string; work?: boolean };
  sessionStorage.setItem(KEY, said.token);
  sessionStorage.setItem(KEY + '-work', said.work ? '1' : '');
  return null;
}
