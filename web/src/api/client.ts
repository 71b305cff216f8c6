// Asks the server. Owns the address of every route, the token's header, and what an error says. Keeps no state.
import { left, token } from '../session';
import { isReport, kept } from './kept';
import { message } from './refused';
import type * as T from './types';

export class Refused extends Error {
  constructor(readonly status: number, message: string) {
    super(message);
  }
}

export type Query = Record<string, string | number | boolean | null | undefined>;

/** As a query, without what is not given. */
export function query(from: Query): string {
  const given = Object.entries(from).filter(([, value]) => value !== null && value !== undefined && value !== '');
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return text ? '?' + text : '';
}

/** An id as a part of a path: ids hold a `/`, which the server writes `~`. */
export const part = (id: string) => encodeURIComponent(id.replaceAll('/', '~'));

export async function ask<R>(path: string, signal?: AbortSignal, init: RequestInit = {}): Promise<R> {
  if (isReport) {
    const found = kept(path);
    if (found !== null) return found as R;
    throw new Refused(404, 'This report does not hold that. `etude studio` shows all of the run.');
  }
  let answer: Response;
  try {
    answer = await fetch('/api/' + path, {
      ...init,
      signal: signal ?? null,
      headers: { authorization: `Bearer ${token()}`, ...(init.body ? { 'content-type': 'application/json' } : {}) },
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refused(0, 'The server does not answer. It may have been stopped; this page goes on when it is back.');
  }
  if (answer.ok) return answer.status === 204 ? (undefined as R) : ((await answer.json()) as R);
  if (answer.status === 401) left('The server does not know this tab any more.');
  throw new Refused(answer.status, await message(answer));
}

const post = (body: unknown): RequestInit => ({ method: 'POST', body: JSON.stringify(body) });

/** A product session in the list. */
export interface SessionSummary {
  id: string;
  directory: string | null;
  task: string;
  began: string | null;
  last_active: string | null;
  open: boolean;
  working: boolean;
}

/** One in full, as `etude.product.sessions.about` tells of it. */
export interface SessionRow {
  id: string;
  directory: string | null;
  began: string | null;
  model: string;
  parent: string | null;
  lines: number;
  prompts: string[];
  stop: string | null;
  redoable: boolean;
  state?: string;
}

export const api = {
  runs: (signal?: AbortSignal) => ask<T.RunList>('runs', signal),
  run: (run: string, signal?: AbortSignal) => ask<T.RunDetail>(`runs/${part(run)}`, signal),
  curves: (run: string, names: string[], from: number | null, to: number | null, signal?: AbortSignal) =>
    ask<T.Curves>(`runs/${part(run)}/curves${query({ names: names.join(','), buckets: 400, from, to })}`, signal),
  results: (run: string, signal?: AbortSignal) => ask<T.ResultsAnswer>(`runs/${part(run)}/results`, signal),
  live: (run: string, signal?: AbortSignal) => ask<T.Live>(`runs/${part(run)}/live`, signal),
  trajectories: (run: string, filter: Query, signal?: AbortSignal) =>
    ask<T.TrajectoryPage>(`runs/${part(run)}/trajectories${query(filter)}`, signal),
  histogram: (run: string, filter: Query, signal?: AbortSignal) =>
    ask<T.Bins>(`runs/${part(run)}/trajectories/histogram${query(filter)}`, signal),
  count: (run: string, filter: Query, signal?: AbortSignal) =>
    ask<T.Count>(`runs/${part(run)}/trajectories/count${query(filter)}`, signal),
  trajectory: (run: string, id: string, turns: string, signal?: AbortSignal) =>
    ask<T.TrajectoryAnswer>(`runs/${part(run)}/trajectories/${part(id)}${query({ turns })}`, signal),
  tokens: (run: string, id: string, segment: number, from: number, count: number, signal?: AbortSignal) =>
    ask<T.TokenColumns>(`runs/${part(run)}/trajectories/${part(id)}/tokens${query({ segment, from, count })}`, signal),
  diff: (run: string, id: string, path: string, signal?: AbortSignal) =>
    ask<T.DiffAnswer>(`runs/${part(run)}/trajectories/${part(id)}/diff${query({ path })}`, signal),
  output: (run: string, id: string, event: number | null, from: number, count: number, signal?: AbortSignal) =>
    ask<T.OutputAnswer>(`runs/${part(run)}/trajectories/${part(id)}/output${query({ event, from, count })}`, signal),
  annotate: (run: string, id: string, note: { text: string; event?: number; segment?: number; token?: number }) =>
    ask<T.Note>(`runs/${part(run)}/trajectories/${part(id)}/annotations`, undefined, post(note)),
  forget: (run: string, id: string, note: string) =>
    ask<T.Removed>(`runs/${part(run)}/trajectories/${part(id)}/annotations/${part(note)}`, undefined, { method: 'DELETE' }),
  files: (run: string, id: string, after: number, signal?: AbortSignal) =>
    ask<T.FilePage>(`runs/${part(run)}/trajectories/${part(id)}/files${query({ after, limit: 500 })}`, signal),
  values: (run: string, signal?: AbortSignal) => ask<T.Values>(`runs/${part(run)}/trajectories/values`, signal),
  group: (run: string, id: string, signal?: AbortSignal) => ask<T.GroupAnswer>(`runs/${part(run)}/groups/${part(id)}`, signal),
  step: (run: string, step: number, signal?: AbortSignal) => ask<T.StepAnswer>(`runs/${part(run)}/steps/${step}`, signal),
  versions: (run: string, after: number | null, signal?: AbortSignal) => ask<T.Versions>(`runs/${part(run)}/versions${query({ limit: 1000, after })}`, signal),
  plan: (run: string, signal?: AbortSignal) => ask<T.PlanAnswer>(`runs/${part(run)}/plan`, signal),
  work: (signal?: AbortSignal) => ask<T.WorkAnswer>('work', signal),
  beginTeam: (team: T.TeamBody) => ask<T.TeamAnswer>('work', undefined, post(team)),
  endTeam: (team: string) => ask<T.TeamAnswer>(`work/${part(team)}`, undefined, { method: 'DELETE' }),
  changes: (team: string, agent: string, after: number, signal?: AbortSignal) =>
    ask<T.ChangesAnswer>(`work/${part(team)}/agents/${part(agent)}/changes${query({ after, limit: 200 })}`, signal),
  apply: (team: string, agent: string, chosen: T.ApplyBody) =>
    ask<T.Applied>(`work/${part(team)}/agents/${part(agent)}/apply`, undefined, post(chosen)),
  answer: (session: string, request: string, answers: T.OneAnswer[]) =>
    ask<unknown>(`sessions/${part(session)}/permissions/${part(request)}`, undefined, post({ answers })),
  sessions: (signal?: AbortSignal) => ask<{ sessions: SessionSummary[]; total: number }>('sessions?limit=1000', signal),
  session: (id: string, signal?: AbortSignal) => ask<SessionRow>(`sessions/${part(id)}`, signal),
  beginSession: (body: T.CreateBody) => ask<SessionRow>('sessions', undefined, post(body)),
  prompt: (id: string, said: T.PromptBody) => ask<unknown>(`sessions/${part(id)}/prompt`, undefined, post(said)),
  fork: (id: string, line: number | null) => ask<SessionRow>(`sessions/${part(id)}/fork`, undefined, post(line === null ? {} : { line })),
  does: (id: string, what: 'cancel' | 'resume' | 'compact' | 'redo' | 'close') => ask<unknown>(`sessions/${part(id)}/${what}`, undefined, { method: 'POST' }),
  undo: (id: string) => ask<unknown>(`sessions/${part(id)}/undo`, undefined, post({})),
  bench: (signal?: AbortSignal) => ask<T.BenchList>('bench', signal),
  compare: (a: string, b: string, signal?: AbortSignal) => ask<T.BenchComparison>(`bench/compare${query({ a, b })}`, signal),
};
