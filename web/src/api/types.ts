// Made by tools/studio_types.py of the server's OpenAPI document. Not to be edited.

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

/** One agent. `session` is the id for `session/ID` and `/api/sessions/ID`; `ended` how its last prompt ended. */
export interface AgentAnswer {
  name: string;
  task: string;
  session: string;
  state: string;
  error: string | null;
  ended: string | null;
  turns: number;
  doing: string;
  began_at: number;
  files: number;
  added: number;
  removed: number;
  asks: number;
}

/** To the questions of one request, in their order. */
export interface AnswersBody {
  answers: OneAnswer[];
}

/** The paths that changed in the user's tree. */
export interface Applied {
  paths: string[];
}

/** What to bring into the user's tree. */
export interface ApplyBody {
  commit: string;
  files?: Record<string, number[] | null> | null;
  rest?: boolean;
}

/** A request that waits: answer it by POST /api/sessions/SESSION/permissions/REQUEST. */
export interface AskedAnswer {
  team: string;
  agent: string;
  session: string;
  request: string;
  questions: Record<string, Json>[];
}

/** The second against the first, on the tasks that both have verdicts on, with a 95% interval of the difference. */
export interface BenchComparison {
  first: Side;
  second: Side;
  tasks: number;
  left_out: number;
  same_harness: boolean;
  better: string[];
  worse: string[];
  alike: number;
  difference: number;
  low: number;
  high: number;
  test: string;
  p: number;
  verdict: string;
  said: string;
  flipped: FlippedTask[];
}

/** The newest first; `unread` are directories that have results which cannot be read, and why. */
export interface BenchList {
  runs: BenchRow[];
  unread: Record<string, string>;
}

/** A run of a benchmark. `rate` is pass@1, with its 95% interval; None where nothing has a verdict. */
export interface BenchRow {
  id: string;
  name: string;
  directory: string;
  policy: string;
  tasks: number;
  planned: number;
  judged: number;
  solved: number;
  rate: number | null;
  low: number;
  high: number;
  updated_at: number;
}

/** How a field is spread: `edges` are one more than `counts`; `solved` are those of each bin that were. */
export interface Bins {
  edges: number[];
  counts: number[];
  solved: number[];
}

/** The share of its time that each works. */
export interface Busy {
  engine: number;
  trainer: number;
}

/** A tool call. `event` is its number in the log; calls of one turn ran side by side where their times overlap. */
export interface CallAnswer {
  event: number;
  name: string;
  arguments: Record<string, Json>;
  raw: string | null;
  started_at: number | null;
  ended_at: number | null;
  failed: boolean | null;
  result: CallResult | null;
}

/** What a tool answered: its beginning; `bytes` it has in all, `cut` whether there is more of it. */
export interface CallResult {
  text: string;
  bytes: number;
  cut: boolean;
}

/** A file that an agent added, changed or removed. Where it has no hunks it is taken whole or not at all. */
export interface ChangedFile {
  path: string;
  status: string;
  binary: boolean;
  hunks: Hunk[];
}

/** What an agent changed, as of `commit`; empty where there is nothing. `next` goes into `after` for more files. */
export interface ChangesAnswer {
  commit: string;
  total: number;
  files: ChangedFile[];
  next: number | null;
}

/** The mean of a session, for each policy; None where it has none such. */
export interface ConductRow {
  name: string;
  means: (number | null)[];
}

/** Two agents whose work does not merge, and where. */
export interface ConflictAnswer {
  first: string;
  second: string;
  paths: string[];
}

/** How many there are. */
export interface Count {
  count: number;
  filling: boolean;
}

/** A new session. */
export interface CreateBody {
  directory: string;
  model?: string | null;
  prompt?: string | null;
  mode?: 'ask' | 'read' | 'auto';
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

/** One file before and after. `cut`: there is more of it than is kept, or than is shown. */
export interface DiffAnswer {
  path: string;
  hunks: Hunk[];
  binary: boolean;
  cut: boolean;
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

/** A session of the trained policy's that says much in a short time. */
export interface Example {
  title: string;
  row: TrajectoryRow;
}

/** A file that it changed. Lines added and removed are None where they were not counted: of binary files, of long ones, and after many. */
export interface FileAnswer {
  path: string;
  added: number | null;
  removed: number | null;
  binary: boolean;
  cut: boolean;
}

/** `next` goes into `after` for more. */
export interface FilePage {
  rows: FileAnswer[];
  total: number;
  next: number | null;
}

/** What was held against it; `event` is the call that it names, where it can be told. */
export interface FindingAnswer {
  text: string;
  event: number | null;
}

/** A task that one solves more often than the other: shares of its attempts. */
export interface FlippedTask {
  task: string;
  first: number;
  second: number;
}

/** Which past the new session has. */
export interface ForkBody {
  line?: number | null;
}

/** Members side by side, and the turns at which they part, from the first on, 50 at most. */
export interface GroupAnswer {
  id: string;
  task: TaskAnswer | null;
  members: MemberAnswer[];
  parting: Parting[];
}

/** Lines that changed, and three around them. `old` and `new` are the first line's numbers there, from 1. */
export interface Hunk {
  old: number;
  new: number;
  lines: (['same' | 'added' | 'removed', string])[];
}

/** What one process played, in time. */
export interface Lane {
  worker: string;
  rollouts: LaneRollout[];
}

/** A rollout in time. `spans` are [from, to, version]: which weights sampled when. */
export interface LaneRollout {
  id: string;
  begun_at: number;
  ended_at: number;
  outcome: string;
  reward: number | null;
  solved: boolean;
  spans: [number, number, number][];
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

/** The step that trained on it. */
export interface MarksAnswer {
  step: number;
  trained_tokens: number;
}

/** One of a group. `calls` are one line a turn. */
export interface MemberAnswer {
  row: TrajectoryRow;
  calls: string[];
  files: number;
  added: number;
  removed: number;
}

/** A code that works once, for one more tab: `#code=` it. */
export interface NewCode {
  code: string;
}

/** What somebody wrote beside a trajectory. */
export interface Note {
  id: string;
  trajectory: string;
  place: Record<string, number>;
  text: string;
  author: string;
  at: number;
}

/** A note beside a trajectory. */
export interface NoteBody {
  text: string;
  author?: string;
  event?: number | null;
  segment?: number | null;
  token?: number | null;
}

/** To one question. */
export interface OneAnswer {
  allowed: boolean;
  remember?: 'once' | 'session' | 'project';
  words?: string;
}

/** First of a topic: from this cursor on it is told. */
export interface Opened {
  opened: boolean;
}

/** What became of it. */
export interface OutcomeAnswer {
  kind: string;
  reward: number | null;
  solved: boolean;
  parts: Record<string, number>;
  limit: string | null;
  evidence: string;
}

/** Part of a long text. `begins` counts characters; `total` is how many there are. */
export interface OutputAnswer {
  text: string;
  begins: number;
  total: number;
}

/** The trained policy against its control: tasks that only one of them has solved, and the hardest of those gained, as both played it; None where there is none, or the archive has it no longer. */
export interface Pair {
  gained: number;
  lost: number;
  played: GroupAnswer | null;
}

/** A turn at which members do not do the same: each one's line, None for one that has ended. */
export interface Parting {
  turn: number;
  kinds: Record<string, string | null>;
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

/** What the user says. */
export interface PromptBody {
  text: string;
  model?: string | null;
  mode?: 'ask' | 'read' | 'auto' | null;
  after?: number | null;
}

/** How many were solved of those played, and the 95% interval of that share. */
export interface Rate {
  solved: number;
  played: number;
  low: number;
  high: number;
}

/** A set of tasks, or a rung of one: a rate for each policy, None where it has played none of them. */
export interface RateRow {
  name: string;
  rates: (Rate | null)[];
}

/** What was taken away. */
export interface Removed {
  removed: string;
}

/** What a run was measured by. `policies` are those it has evaluated: base, after and control. */
export interface ResultsAnswer {
  policies: string[];
  sets: RateRow[];
  rungs: RateRow[];
  conduct: ConductRow[];
  pair: Pair | null;
  examples: Example[];
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
  remark: string | null;
  keys: Record<string, Json>;
  counters: Record<string, Json>;
  summary: Record<string, Json> | null;
  phases: Phase[];
  notes: RunNote[];
}

/** The newest first. `remarks` say which stores do not answer, and what in them cannot be read. */
export interface RunList {
  runs: RunRow[];
  total: number;
  remarks: string[];
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
  remark: string | null;
}

/** Of `runs`. `runs` are all there are, in the place of those told before; `changed` and `gone` are what is other than at the last event. `remarks` are those of the list, at every event. */
export interface RunsEvent {
  runs?: RunRow[] | null;
  changed?: RunRow[] | null;
  gone?: string[] | null;
  remarks?: string[] | null;
}

/** A context: its kind, and how many tokens it has. `from_turn` is the first turn in it. */
export interface SegmentAnswer {
  kind: 'turns' | 'summary';
  tokens: number;
  sampled: number;
  from_turn: number;
}

/** One figure in buckets: of each the smallest, the largest and the last value, and the last one's x. */
export interface Series {
  x: number[];
  min: number[];
  max: number[];
  last: number[];
}

/** Of `session/ID`. `line` is an event of its log, whose cursor is its number. Without a cursor come `now`, how it stands, first; then what is in no log, by its name: words, call, again, printed, asked, answered, state. */
export interface SessionEvent {
  line?: Record<string, Json> | null;
  name?: string | null;
  data?: Record<string, Json> | null;
}

/** One of two. */
export interface Side {
  name: string;
  rate: number;
}

/** A step: its line in the metrics, the groups that it trained on, and when they were played. */
export interface StepAnswer {
  step: number;
  line: Record<string, Json>;
  groups: StepGroup[];
  lanes: Lane[];
}

/** A step, by the names that curves have. */
export interface StepFigures {
  step: number;
  at: number | null;
  figures: Record<string, number>;
}

/** A group of a step. */
export interface StepGroup {
  id: string;
  task: string;
  rewards: (number | null)[];
  trained: string[];
  dropped: Record<string, string | null>;
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

/** What was to be done. */
export interface TaskAnswer {
  id: string;
  instruction: string;
  files: string[];
  verifier: string;
  split: string;
  provenance: Record<string, Json>;
}

/** Agents on one repository. */
export interface TeamAnswer {
  id: string;
  directory: string;
  ended: boolean;
  agents: AgentAnswer[];
  conflicts: ConflictAnswer[];
}

/** A team to begin: an agent for each task. */
export interface TeamBody {
  directory: string;
  tasks: string[];
  model?: string | null;
  mode?: 'ask' | 'read' | 'auto';
}

/** By the run's own clock. */
export interface Throughput {
  samples_per_s: number;
  tokens_per_s: number;
}

/** Tokens of one segment from a place on; each column is as long as `id`, or None where nothing of it is known. A value is None where a token has none: what was not sampled has no log-probability, what was not trained on no advantage. */
export interface TokenColumns {
  begins: number;
  total: number;
  id: number[];
  text: string[] | null;
  sampled: boolean[];
  logprob: (number | null)[];
  version: (number | null)[];
  advantage: (number | null)[] | null;
  trainer_logprob: (number | null)[] | null;
  entropy: (number | null)[] | null;
  mask: (string | null)[] | null;
}

/** Of `run/ID/trajectories`: rows that are new or have changed. `anew`: forget those told before. */
export interface TrajectoriesEvent {
  rows: TrajectoryRow[];
  anew: boolean;
}

/** A trajectory without its tokens: turns and files as many as were asked for. */
export interface TrajectoryAnswer {
  row: TrajectoryRow;
  task: TaskAnswer | null;
  prompts: string[];
  segments: SegmentAnswer[];
  turns: TurnAnswer[];
  turns_total: number;
  outcome: OutcomeAnswer;
  findings: FindingAnswer[];
  files: FileAnswer[];
  files_total: number;
  verifier: CallResult;
  marks: MarksAnswer | null;
  usage: Record<string, Json>;
  environment: Record<string, Json>;
  annotations: Note[];
}

/** `next` goes into `after` for more; None after the last. */
export interface TrajectoryPage {
  rows: TrajectoryRow[];
  next: string | null;
}

/** What is known of a trajectory without its tokens and events. Times are unix seconds. */
export interface TrajectoryRow {
  id: string;
  phase: string;
  group_id: string;
  task_id: string;
  step: number | null;
  outcome: 'scored' | 'truncated' | 'infra_failed' | 'cheated' | 'quarantined';
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
  worker: string;
  begun_at: number;
  ended_at: number;
  seconds: number;
  tools: string[];
  limit: string | null;
  trained_tokens?: number | null;
  dropped?: string | null;
}

/** A message of the model, and its calls. `tokens` are its segment, first and one after the last in that segment. */
export interface TurnAnswer {
  n: number;
  event: number;
  kind: 'turn' | 'summary';
  at: number;
  text: string;
  thinking: string | null;
  version: number | null;
  calls: CallAnswer[];
  calls_total: number;
  tokens: [number, number, number] | null;
}

/** How far back. */
export interface UndoBody {
  turns?: number | null;
}

/** What there is to filter by: how many rows have which value. */
export interface Values {
  outcome: Record<string, number>;
  task: Record<string, number>;
  tool: Record<string, number>;
  phase: Record<string, number>;
  dropped: Record<string, number>;
  orders: string[];
  histograms: string[];
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

/** All teams, and all that they ask, in one inbox. */
export interface WorkAnswer {
  teams: TeamAnswer[];
  inbox: AskedAnswer[];
}

/** Of the topic `work`, when it changes. */
export interface WorkEvent {
  work: WorkAnswer;
}
