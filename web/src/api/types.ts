// Made by tools/studio_types.py of the server's OpenAPI document. Not to be edited.

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

/** The share of its time that each works. */
export interface Busy {
  engine: number;
  trainer: number;
}

/** Figures of steps. `cursor` is where the topic `run/ID/steps` goes on after this answer. */
export interface Curves {
  x: number[];
  names: string[];
  series: Record<string, Series>;
  cursor: string;
}

/** A version put into one engine: when, and for how long it paused. */
export interface Delivery {
  engine: string;
  at: number | null;
  pause_ms: number;
}

/** What stands behind the # of the printed address. */
export interface EnterBody {
  code: string;
}

/** What a page knows once it was let in. */
export interface Entered {
  token: string;
  work: boolean;
  version: string;
}

export interface Error {
  error: { kind?: string; message?: string; retryable?: boolean; };
}

/** What a run does now. Of one that no process has, `phase` is the last there was, and what only a process knows is None or empty. */
export interface Live {
  state: 'running' | 'ended' | 'stopped' | 'copied';
  phase: string;
  at: number;
  elapsed_s: number | null;
  left_s: number | null;
  evaluated: number;
  to_evaluate: number;
  busy: Busy | null;
  ages: Record<string, number>;
  sandboxes: number | null;
  failures: Record<string, number>;
  throughput: Throughput | null;
  states: Record<string, number>;
  slots: LiveSlot[];
  watched: Watched | null;
  figures: Record<string, number>;
}

/** A tool call as one line. `failed` is None while it runs. */
export interface LiveCall {
  name: string;
  arguments: string;
  result: string;
  failed: boolean | null;
}

/** Of `run/ID/live`: how things stand now, told when they change. */
export interface LiveEvent {
  live: Live;
}

/** One sample that is wanted, and where it is; `since` is in Unix seconds, None where it is not known. */
export interface LiveSlot {
  id: string;
  state: string;
  since: number | null;
  task: string;
  worker: string | null;
}

/** A code that works once, for one more tab: `#code=` it. */
export interface NewCode {
  code: string;
}

/** First of a topic: from this cursor on it is told. */
export interface Opened {
  opened: boolean;
}

/** Part of a run's life, from when on. */
export interface Phase {
  name: string;
  at: number;
}

/** What `etude plan --from RUN --json` says of the run's own recipe. */
export interface PlanAnswer {
  now: Record<string, Json>;
  recommended: Record<string, Json>;
  tried: Record<string, Json>[];
  engine_s_per_sample: number;
  trainer_s_per_sample: number;
  engines_per_trainer: number;
  inference_share: number;
  rates: Record<string, Json>;
  said: string[];
}

/** A run in full. */
export interface RunDetail {
  id: string;
  name: string;
  recipe: string;
  directory: string;
  state: 'running' | 'ended' | 'stopped' | 'copied';
  started_at: number | null;
  updated_at: number;
  steps: number;
  version: number;
  figures: Record<string, number | null>;
  trajectories: number | null;
  bytes: number;
  keys: Record<string, Json>;
  counters: Record<string, Json>;
  summary: Record<string, Json> | null;
  phases: Phase[];
  notes: RunNote[];
}

/** The newest first. */
export interface RunList {
  runs: RunRow[];
  total: number;
}

/** What happened beside training: a restart, a change by an operator, a finding; the rest is in `data`. */
export interface RunNote {
  kind: string;
  at: number | null;
  data: Record<string, Json>;
}

/** A run in the list. `copied`: its directory was made elsewhere, and no process has it here. */
export interface RunRow {
  id: string;
  name: string;
  recipe: string;
  directory: string;
  state: 'running' | 'ended' | 'stopped' | 'copied';
  started_at: number | null;
  updated_at: number;
  steps: number;
  version: number;
  figures: Record<string, number | null>;
  trajectories: number | null;
  bytes: number;
}

/** Of `runs`. `runs` are all there are, in the place of those told before; `changed` and `gone` are what is other than at the last event. */
export interface RunsEvent {
  runs?: RunRow[] | null;
  changed?: RunRow[] | null;
  gone?: string[] | null;
}

/** One figure in buckets: of each the smallest, the largest and the last value, and the last one's x. */
export interface Series {
  x: number[];
  min: number[];
  max: number[];
  last: number[];
}

/** A step, by the names that curves have. */
export interface StepFigures {
  step: number;
  at: number | null;
  figures: Record<string, number>;
}

/** Of `run/ID/steps`. One member is there: a step; `cut`, after which step those told before are not true any more, because a run that was killed makes them again; or `reset`: forget all, and ask for the curves again. */
export interface StepsEvent {
  step?: StepFigures | null;
  cut?: number | null;
  reset?: boolean | null;
}

/** What a tab wants to be told of. */
export interface StreamBody {
  topics: Record<string, string | null>;
}

/** By the run's own clock. */
export interface Throughput {
  samples_per_s: number;
  tokens_per_s: number;
}

/** A version of the weights. */
export interface VersionRow {
  version: number;
  step: number;
  bytes: number | null;
  raw_bytes: number | null;
  changed_share: number | null;
  kind: 'base' | 'delta';
  root: string | null;
  published_at: number | null;
  publish_ms: number | null;
  pause_ms: number | null;
  lag_ms: number | null;
  deliveries: Delivery[];
}

/** The chain, newest last. `next` goes into `after` for more. */
export interface Versions {
  rows: VersionRow[];
  total: number;
  next: number | null;
}

/** The rollout whose calls are told as it makes them. */
export interface Watched {
  id: string;
  instruction: string;
  calls: LiveCall[];
}
