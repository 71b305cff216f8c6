// The one stream of a tab. Owns the topics that pages follow and how far each has been read: when the connection is
// lost, it comes back with the cursors, so nothing is missed and nothing is told twice. Talks to: /api/stream.
import { signal } from '@preact/signals';
import { isReport } from './api/kept';
import { left, token } from './session';

export type Connection = 'connecting' | 'open' | 'lost';
export const connection = signal<Connection>('connecting');

/** One event as the server sends it: of which topic, up to where, and what is said. */
export interface Told {
  event: string;
  id: string;
  data: string;
}

const END = /\r?\n\r?\n/;

/** Makes events of a stream's text, however it is cut into chunks. Comments, which are heartbeats, are none. */
export class Events {
  private parts: string[] = [];
  private last = '';

  *feed(chunk: string): Generator<Told> {
    this.parts.push(chunk);
    const near = this.last + chunk;
    this.last = near.slice(-3);
    if (!END.test(near)) return; // an event of megabytes is put together once, and not with each of its chunks
    let rest = this.parts.join('');
    for (;;) {
      const end = END.exec(rest);
      if (!end) break;
      const block = rest.slice(0, end.index);
      rest = rest.slice(end.index + end[0].length);
      const told: Told = { event: '', id: '', data: '' };
      const lines: string[] = [];
      for (const line of block.split(/\r?\n/)) {
        const at = line.indexOf(':');
        if (at <= 0) continue;
        const value = line.slice(at + 1).replace(/^ /, '');
        const name = line.slice(0, at);
        if (name === 'data') lines.push(value);
        else if (name === 'event' || name === 'id') told[name] = value;
      }
      if (lines.length) yield { ...told, data: lines.join('\n') };
    }
    this.parts = [rest];
    this.last = rest.slice(-3);
  }
}

/** Seconds to wait before the next try: doubled each time, with chance, so that many tabs do not come at once. */
export function backoff(tries: number, chance = Math.random()): number {
  return Math.min(15, 0.4 * 2 ** tries) * (0.5 + 0.5 * chance);
}

type Handler = (data: unknown) => void;
const handlers = new Map<string, Set<Handler>>();
const cursors = new Map<string, string>();
const refused = new Set<string>();

/** The server beats at least every fifteen seconds; so long without a byte is a connection that died unseen. */
const SILENT_MS = 45_000;

let running: AbortController | null = null;
let tries = 0;
let again: ReturnType<typeof setTimeout> | undefined;

/** Follow a topic from `cursor` on, or from now; returns what ends it. */
export function follow(topic: string, handler: Handler, cursor?: string): () => void {
  const known = handlers.get(topic) ?? new Set();
  if (!known.size && cursor !== undefined) cursors.set(topic, cursor);
  const fresh = known.size === 0;
  known.add(handler);
  handlers.set(topic, known);
  if (fresh) restart();
  return () => {
    known.delete(handler);
    if (known.size) return;
    handlers.delete(topic);
    cursors.delete(topic);
    refused.delete(topic);
    restart();
  };
}

/** What is followed has changed: pages do this in bursts, and one new connection is enough. */
function restart(): void {
  if (isReport) return;
  clearTimeout(again);
  again = setTimeout(() => void connect(), 20);
}

/** Try at once, without waiting for the next turn. */
export function retry(): void {
  tries = 0;
  restart();
}

async function connect(): Promise<void> {
  running?.abort();
  if (!handlers.size || !token()) return;
  const mine = (running = new AbortController());
  if (connection.value !== 'open') connection.value = tries ? 'lost' : 'connecting';
  try {
    await read(mine);
  } catch {
    // refused, cut or silent: all the same to us
  }
  if (running !== mine || mine.signal.aborted && mine.signal.reason !== 'silent') return;
  connection.value = 'lost';
  clearTimeout(again);
  again = setTimeout(() => void connect(), 1000 * backoff(tries++));
}

async function read(mine: AbortController): Promise<void> {
  const wanted = [...handlers.keys()].filter((topic) => !refused.has(topic));
  const topics = Object.fromEntries(wanted.map((topic) => [topic, cursors.get(topic) ?? null]));
  const answer = await fetch('/api/stream', {
    method: 'POST',
    signal: mine.signal,
    headers: { authorization: `Bearer ${token()}`, 'content-type': 'application/json', accept: 'text/event-stream' },
    body: JSON.stringify({ topics }),
  });
  if (answer.status === 401) left('The server does not know this tab any more.');
  if (answer.status === 400 || answer.status === 404) {
    // a run that is gone must not keep the tab from all others: only what every server has is asked for again
    for (const topic of wanted) if (topic !== 'runs') refused.add(topic);
  }
  if (!answer.ok || !answer.body) throw new Error(`stream: ${answer.status}`);
  connection.value = 'open';
  tries = 0;
  const events = new Events();
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const silent = setTimeout(() => mine.abort('silent'), SILENT_MS);
    const { done, value } = await reader.read().finally(() => clearTimeout(silent));
    if (done) return;
    for (const told of events.feed(value)) deliver(told);
  }
}

function deliver({ event, id, data }: Told): void {
  if (id) cursors.set(event, id);
  const known = handlers.get(event);
  if (!known) return;
  const said: unknown = JSON.parse(data);
  for (const handler of [...known]) handler(said);
}
