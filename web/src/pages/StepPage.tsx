// One step of the trainer: which rollouts it learnt from, when and by which versions they were sampled, and how their groups
// were rewarded.
import { useEffect, useMemo, useState } from 'preact/hooks';
import { api } from '../api/client';
import type { LaneRollout, StepAnswer, StepGroup } from '../api/types';
import { figure, NONE, percent, plural, whole } from '../format';
import { useKeys } from '../keys';
import { ofVersion } from '../model/colours';
import { ofRange, rangeOf } from '../model/filter';
import { lay } from '../model/lanes';
import { listed } from '../model/listed';
import { figuresOf, labelOf } from '../model/series';
import { go, place, refine, to } from '../router';
import { Badge, Empty, Facts, Name, Shown } from '../ui/bits';
import { Histogram } from '../ui/Histogram';
import { Lanes } from '../ui/Lanes';
import { useLoad } from '../ui/load';
import { Rows } from '../ui/Rows';
import '../style/chart.css';
import '../style/lanes.css';

export function StepPage({ run, step }: { run: string; step: number | null }) {
  const detail = useLoad((signal) => api.run(run, signal), [run]);
  const last = detail.data?.steps ?? null;
  useEffect(() => {
    if (step === null && last) location.replace(to(['run', run, 'step', last]));
  }, [step, last]);
  if (step === null) {
    return <Shown from={detail} of="the run">{() => (last ? null : <Empty title="No step yet">This page shows what the trainer learnt from, as soon as it has made a step.</Empty>)}</Shown>;
  }
  return <One run={run} step={step} last={last} />;
}

function One({ run, step, last }: { run: string; step: number; last: number | null }) {
  const found = useLoad((signal) => api.step(run, step, signal), [run, step], true);
  const show = (next: number) => next >= 1 && (last === null || next <= last) && go(to(['run', run, 'step', next]));
  const turn = (by: number) => show(step + by);
  useKeys(
    [
      { keys: '[', does: 'Step before', run: () => turn(-1) },
      { keys: ']', does: 'Next step', run: () => turn(1) },
      { keys: '/', does: 'Go to a step by its number', run: () => document.getElementById('step')?.focus() },
    ],
    [run, step, last],
  );
  return (
    <>
      <div class="title">
        <h1>Step {step}</h1>
        {last !== null && <span class="meta">of {last}</span>}
        <span class="grow" />
        <div class="row">
          <input id="step" class="field narrow" type="number" min={1} max={last ?? undefined} aria-label="Go to step" placeholder="Step" onChange={({ currentTarget: field }) => (show(field.valueAsNumber), (field.value = ''), field.blur())} />
          <button class="btn" disabled={step <= 1} onClick={() => turn(-1)}>
            Before <span class="kbd">[</span>
          </button>
          <button class="btn" disabled={last !== null && step >= last} onClick={() => turn(1)}>
            Next <span class="kbd">]</span>
          </button>
        </div>
      </div>
      <Shown from={found} of="the step">
        {(data) => <Body run={run} data={data} />}
      </Shown>
    </>
  );
}

const HEAD = ['reward', 'solve_rate', 'trained_rollouts', 'trained_tokens', 'mean_age', 'entropy', 'loss', 'grad_norm', 'max_abs_dlogp', 'step_wall_s'];

function Body({ run, data }: { run: string; data: StepAnswer }) {
  const figures = useMemo(() => figuresOf(data.line), [data.line]);
  const laid = useMemo(() => lay(data.lanes), [data.lanes]);
  const rollouts = laid.placed.map((each) => each.rollout);
  const [from, until] = rangeOf(place.value.query.get('reward'));
  const rewards = useMemo(() => countsOf(rollouts), [data.lanes]);
  const within = (rollout: LaneRollout) =>
    (from === null || (rollout.reward !== null && rollout.reward >= from)) && (until === null || (rollout.reward !== null && rollout.reward <= until));
  const shown = new Set(rollouts.filter(within).map((each) => each.id));
  const open = (id: string) => go(to(['run', run, 'trajectory', id]));
  useEffect(() => {
    listed.value = { run, address: to(['run', run, 'step', data.step]), ids: rollouts.map((each) => each.id) };
  }, [laid]);
  return (
    <>
      <div class="card">
        <Facts of={HEAD.filter((name) => name in figures).map((name) => [labelOf(name).replace(/ \(.*/, ''), name === 'solve_rate' ? percent(figures[name]) : figure(figures[name])])} />
      </div>
      {laid.placed.length > 0 ? (
        <div class="card">
          <div class="cardhead">
            <h2>Rollouts by worker, coloured by the version that sampled</h2>
            <VersionKey oldest={laid.oldest} newest={laid.newest} />
          </div>
          <Lanes lanes={data.lanes} shown={(id) => shown.has(id)} open={open} />
        </div>
      ) : (
        <div class="card">
          <Empty title="No rollout of this step is kept">The archive has no trajectory with this step: it began later, or what it held was cleared away.</Empty>
        </div>
      )}
      <div class="two">
        <div class="card">
          <h2>{plural(data.groups.length, 'group')}</h2>
          <Groups run={run} groups={data.groups} />
        </div>
        <div class="card stack">
          <h2>Rewards</h2>
          {rewards ? (
            <Histogram title="Reward" counts={rewards} from={from} to={until} choose={(a, b) => refine({ reward: ofRange([a, b]) })} />
          ) : (
            <p class="muted">No reward is known.</p>
          )}
          <p class="muted small">{from !== null || until !== null ? `${whole(shown.size)} of ${whole(rollouts.length)} rollouts are in this range; the others are faded.` : 'Drag over the bars to fade the others above.'}</p>
          <a href={to(['run', run, 'trajectories'], { step: Number(data.line.step) })}>Trajectories of this step</a>
        </div>
      </div>
      <AllFigures figures={figures} />
    </>
  );
}

export function VersionKey({ oldest, newest }: { oldest: number; newest: number }) {
  const all = newest - oldest < 10 ? Array.from({ length: newest - oldest + 1 }, (_, at) => oldest + at) : [oldest, Math.round((oldest + newest) / 2), newest];
  return (
    <div class="key">
      {all.map((version) => (
        <span key={version}>
          <i style={{ background: ofVersion(version, oldest, newest) }} />v{version}
        </span>
      ))}
    </div>
  );
}

/** Twenty bins of the rewards. */
export function countsOf(rollouts: Pick<LaneRollout, 'reward' | 'solved'>[], bins = 20) {
  const values = rollouts.flatMap((each) => (each.reward === null ? [] : [each.reward]));
  if (!values.length) return null;
  const low = Math.min(...values);
  const high = Math.max(...values, low + 1e-6);
  const counts = new Array<number>(bins).fill(0);
  const solved = new Array<number>(bins).fill(0);
  for (const each of rollouts) {
    if (each.reward === null) continue;
    const bin = Math.min(bins - 1, Math.floor((bins * (each.reward - low)) / (high - low)));
    counts[bin]! += 1;
    if (each.solved) solved[bin]! += 1;
  }
  return { edges: Array.from({ length: bins + 1 }, (_, at) => low + (at * (high - low)) / bins), counts, solved };
}

function Groups({ run, groups }: { run: string; groups: StepGroup[] }) {
  const [order, setOrder] = useState<'id' | 'spread'>('id');
  const spread = ({ rewards }: StepGroup) => {
    const known = rewards.filter((each) => each !== null);
    return known.length ? Math.max(...known) - Math.min(...known) : -1;
  };
  const sorted = order === 'id' ? groups : [...groups].sort((a, b) => spread(b) - spread(a));
  return (
    <Rows
      label="Groups"
      rows={sorted}
      id={(group) => group.id}
      open={(group) => go(to(['run', run, 'group', group.id]))}
      columns={[
        { name: 'id', label: <button onClick={() => setOrder('id')}>Group</button>, kind: 'wide', cell: (group) => <a class="mono" href={to(['run', run, 'group', group.id])}>{group.id}</a> },
        { name: 'task', label: 'Task', kind: 'wide', cell: (group) => <Name text={group.task} mono /> },
        { name: 'rewards', label: 'Rewards', cell: (group) => <Dots rewards={group.rewards} /> },
        { name: 'spread', label: <button onClick={() => setOrder('spread')}>Spread</button>, kind: 'r', cell: (group) => (spread(group) < 0 ? NONE : spread(group) < 1e-9 ? <span class="bad">all equal</span> : figure(spread(group))) },
        { name: 'dropped', label: 'Left out', cell: (group) => <LeftOut group={group} /> },
      ]}
    />
  );
}

/** Members that were not trained on, by why. */
function LeftOut({ group }: { group: StepGroup }) {
  const causes = new Map<string, number>();
  for (const why of Object.values(group.dropped)) causes.set(why ?? 'not yet', (causes.get(why ?? 'not yet') ?? 0) + 1);
  return (
    <>
      {[...causes].map(([why, count]) => (
        <Badge key={why}>
          {count} {why.replaceAll('_', ' ')}
        </Badge>
      ))}
    </>
  );
}

/** A group's rewards as marks on a line from its least to 1. */
function Dots({ rewards }: { rewards: (number | null)[] }) {
  const known = rewards.filter((each) => each !== null);
  const low = Math.min(0, ...known);
  const high = Math.max(1, ...known);
  return (
    <svg width="120" height="14" role="img" aria-label={known.map(figure).join(', ') || 'none'}>
      <line x1="4" x2="116" y1="7" y2="7" stroke="var(--line)" />
      {known.map((each, at) => (
        <circle key={at} cx={4 + (112 * (each - low)) / (high - low)} cy="7" r="3.5" fill="var(--accent)" fill-opacity="0.55" />
      ))}
    </svg>
  );
}

function AllFigures({ figures }: { figures: Record<string, number> }) {
  return (
    <details class="card">
      <summary>All {Object.keys(figures).length} figures of the step</summary>
      <div class="columns figures">
        {Object.entries(figures).map(([name, value]) => (
          <div key={name}>
            <span class="mono muted clip" title={name}>
              {name}
            </span>
            <span class="num">{figure(value)}</span>
          </div>
        ))}
      </div>
    </details>
  );
}
