// Answers of the archive's routes, and what a plan holds, as far as the server's document does not yet say it.
import type { Json } from './types';

export type Outcome = 'scored' | 'truncated' | 'infra_failed' | 'cheated' | 'quarantined';

export interface TrajectoryRow {
  id: string;
  group_id: string;
  task_id: string;
  step: number | null;
  outcome: Outcome;
  reward: number | null;
  solved: boolean;
  parts: Record<string, number>;
  findings: number;
  turns: number;
  calls: number;
  sampled_tokens: number;
  total_tokens: number;
  oldest_version: number | null;
  newest_version: number | null;
  worker: string | null;
  begun_at: number | null;
  ended_at: number | null;
  seconds: number | null;
  tools: string[];
  limit: string | null;
  dropped: string | null;
}
export interface TrajectoryPage {
  rows: TrajectoryRow[];
  next: string | null;
}
export interface Histogram {
  edges: number[];
  counts: number[];
  solved: number[];
}

export interface Cut {
  text: string;
  bytes: number;
  cut: boolean;
}
export interface Call {
  event: number;
  name: string;
  arguments: Record<string, Json> | string;
  started_at: number | null;
  ended_at: number | null;
  failed: boolean;
  result: Cut | null;
}
export interface Turn {
  n: number;
  at: number | null;
  text: string;
  thinking: string | null;
  calls: Call[];
  tokens: [segment: number, from: number, to: number] | null;
}
export interface Segment {
  kind: string;
  tokens: number;
  sampled: number;
  from_turn: number | null;
}
export interface Finding {
  text: string;
  event: number | null;
}
export interface ChangedFile {
  path: string;
  added: number;
  removed: number;
  binary: boolean;
}
export interface Annotation {
  id: number | string;
  event: number | null;
  token: number | null;
  segment?: number | null;
  text: string;
  author: string;
  at: number | null;
}
export interface Trajectory {
  row: TrajectoryRow;
  task: { id: string; instruction: string; rung?: number | null; [key: string]: unknown };
  segments: Segment[];
  turns: Turn[];
  outcome: { kind: string; reward: number | null; parts: Record<string, number>; limit?: string | null; evidence?: Json };
  findings: Finding[];
  files: ChangedFile[];
  verifier: { output: string; bytes: number; cut: boolean } | null;
  marks: { step: number; trained_tokens: number } | null;
  annotations: Annotation[];
}

/** Columns, one entry a token; null where the run kept none. */
export interface Tokens {
  text: string[];
  sampled: boolean[] | null;
  logprob: (number | null)[] | null;
  version: (number | null)[] | null;
  advantage: (number | null)[] | null;
  trainer_logprob: (number | null)[] | null;
  entropy: (number | null)[] | null;
  mask: (boolean | number | string | null)[] | null;
}

export type DiffLineKind = ' ' | '+' | '-';
export interface Hunk {
  old: number;
  new: number;
  lines: [DiffLineKind, string][];
}
export interface Diff {
  hunks: Hunk[];
  cut: boolean;
}
export interface Output {
  text: string;
  from: number;
  count: number;
  bytes: number;
}

export interface GroupMember extends TrajectoryRow {
  calls_shown: string[];
  diff_summary: string | null;
}
export interface Group {
  task: { id: string; instruction: string; [key: string]: unknown };
  members: (Omit<TrajectoryRow, 'calls'> & { calls: string[]; diff_summary: string | null })[];
  parting: { turn: number; kinds: Record<string, string> }[];
}

export interface StepGroup {
  id: string;
  task: string;
  rewards: (number | null)[];
  dropped: string | null;
}
export interface LaneRollout {
  id: string;
  begun_at: number;
  ended_at: number;
  outcome: Outcome;
  reward: number | null;
  spans: [from: number, to: number, version: number][];
}
export interface Lane {
  worker: string;
  rollouts: LaneRollout[];
}
export interface Step {
  line: Record<string, Json>;
  groups: StepGroup[];
  lanes: Lane[];
}

export interface PlanOption {
  concurrency: number;
  groups_per_step: number;
  engines: number;
  samples_per_s: number;
  step_s: number;
  trainer_busy: number;
  engine_busy: number;
  age_p50: number;
  age_p99: number;
  stale_share: number;
}
