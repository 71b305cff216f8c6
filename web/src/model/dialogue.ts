// A product session as a page shows it: computed from the lines of its log, and from what is in no log yet (the message that
// is being written, what a command prints). Owns no connection; every prefix of a log has its picture, so it can be replayed.
import type { Json } from '../api/types';

export interface SessionCall {
  name: string;
  arguments: Json;
  /** Null while it runs. */
  result: string | null;
  failed: boolean;
}
export type Item =
  | { kind: 'prompt'; text: string; line: number }
  | { kind: 'turn'; text: string; calls: SessionCall[]; line: number }
  | { kind: 'note'; text: string; line: number };

export type LogLine = { kind: string; at?: number; [key: string]: Json | undefined };

const text = (value: Json | undefined) => (typeof value === 'string' ? value : '');
const CALLS = '<tool_call>';
const THINKING = /^\s*<think>[\s\S]*?<\/think>/;

/** The picture after these lines; numbers of lines begin at 1. */
export function pictured(lines: LogLine[]): Item[] {
  const items: Item[] = [];
  lines.forEach((line, at) => one(items, line, at + 1));
  return items;
}

function one(items: Item[], line: LogLine, number: number): void {
  const last = items.at(-1);
  const call = () => (last?.kind === 'turn' ? last.calls[Number(line.index ?? 0)] : undefined);
  const note = (said: string) => items.push({ kind: 'note', text: said, line: number });
  switch (line.kind) {
    case 'prompt':
      items.push({ kind: 'prompt', text: text(line.user), line: number });
      break;
    case 'completion':
      items.push({ kind: 'turn', text: shown(text(line.text)), calls: [], line: number });
      break;
    case 'tool_call':
      if (last?.kind === 'turn') last.calls[Number(line.index ?? 0)] = { name: text(line.name), arguments: line.arguments ?? line.raw ?? {}, result: null, failed: false };
      break;
    case 'tool_result': {
      const found = call();
      if (found) Object.assign(found, { result: text(line.text), failed: line.error === true });
      break;
    }
    case 'summary':
      note(`The model summarised what had happened:\n${text(line.text)}`);
      break;
    case 'undo':
      note('The user went back.');
      break;
    case 'redo':
      note('The user took that back.');
      break;
    case 'end':
      note(`Ended: ${text(line.stop).replaceAll('_', ' ')}.`);
      break;
  }
}

/** What the model said, without its calls, which stand for themselves, and its thinking. */
const shown = (said: string) => said.replace(THINKING, '').split(CALLS)[0]!.trim();

export interface Message {
  text: string;
  calls: { name: string; arguments: string }[];
}
export interface Beside {
  state: string;
  error: string | null;
  questions: Asked[];
  message: Message;
  printed: Record<string, string>;
}
export interface Asked {
  request: string;
  questions: Question[];
}
export interface Question {
  tool: string;
  arguments: Record<string, Json>;
  why: string;
  rules: string[];
}

export const NOTHING: Beside = { state: 'resting', error: null, questions: [], message: { text: '', calls: [] }, printed: {} };
const PRINTED = 64_000;

/** What is in no log, after an event of that kind. */
export function besides(now: Beside, name: string, data: Record<string, Json>): Beside {
  switch (name) {
    case 'now':
      return { ...NOTHING, ...(data as unknown as Beside) };
    case 'words':
      return data.kind === 'text' ? { ...now, message: { ...now.message, text: now.message.text + text(data.text) } } : now;
    case 'call': {
      const calls = [...now.message.calls];
      const before = calls[Number(data.index)] ?? { name: '', arguments: '' };
      calls[Number(data.index)] = { name: text(data.name) || before.name, arguments: before.arguments + text(data.arguments) };
      return { ...now, message: { ...now.message, calls } };
    }
    case 'again':
      return { ...now, message: NOTHING.message };
    case 'printed': {
      const at = String(data.index);
      return { ...now, printed: { ...now.printed, [at]: ((now.printed[at] ?? '') + text(data.text)).slice(-PRINTED) } };
    }
    case 'asked':
      return { ...now, questions: [...now.questions.filter((each) => each.request !== data.request), data as unknown as Asked] };
    case 'answered':
      return { ...now, questions: now.questions.filter((each) => each.request !== data.request) };
    case 'state':
      return { ...now, state: text(data.state), error: (data.error as string | null) ?? null, ...(data.state === 'working' ? {} : { message: NOTHING.message, printed: {} }) };
  }
  return now;
}

/** A line of the log ends what was being written of it. */
export function logged(now: Beside, line: LogLine): Beside {
  if (['completion', 'summary', 'end', 'undo', 'redo'].includes(line.kind)) return { ...now, message: NOTHING.message };
  if (line.kind === 'tool_result') {
    const { [String(line.index ?? 0)]: _, ...printed } = now.printed;
    return { ...now, printed };
  }
  return now;
}
