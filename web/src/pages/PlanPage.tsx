// What `etude plan` says of a run, drawn: how fast other settings near the recipe's would be, and how stale their samples.
import { useState } from 'preact/hooks';
import { api } from '../api/client';
import type { PlanAnswer, RunRow } from '../api/types';
import { figure, percent, seconds, tick } from '../format';
import { runOf } from '../model/runs';
import { Empty, Facts, Said, Shown } from '../ui/bits';
import { useLoad } from '../ui/load';
import '../style/chart.css';

export function PlanPage({ run }: { run: string }) {
  const found = useLoad((signal) => api.plan(run, signal), [run]);
  return (
    <>
      <div class="title">
        <h1>Plan</h1>
        <span class="meta">simulated with the rates that this run has had</span>
      </div>
      {found.error && !found.data ? (
        <Empty title="No plan yet">
          <Said text={found.error} />
        </Empty>
      ) : (
        <Shown from={found} of="the plan">
          {(plan) => <Body plan={plan} run={runOf(run)} />}
        </Shown>
      )}
    </>
  );
}

const same = (a: PlanOption, b: PlanOption) => a.concurrency === b.concurrency && a.groups_per_step === b.groups_per_step && a.engines === b.engines;

/** One setting, and what it would do. */
interface PlanOption {
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

interface Plan {
  now: PlanOption;
  recommended: PlanOption;
  tried: PlanOption[];
}

function Body({ plan: whole, run }: { plan: PlanAnswer; run: RunRow | undefined }) {
  const plan = whole as unknown as Plan & PlanAnswer;
  const gain = plan.recommended.samples_per_s / Math.max(1e-9, plan.now.samples_per_s) - 1;
  const options = [plan.now, ...plan.tried.filter((each) => !same(each, plan.now))].sort((a, b) => b.samples_per_s - a.samples_per_s);
  const kept = same(plan.recommended, plan.now);
  const set = [`rollouts.concurrency=${plan.recommended.concurrency}`, `rollouts.groups_per_step=${plan.recommended.groups_per_step}`];
  return (
    <>
      <div class="grid">
        <Option title="The recipe as it is" of={plan.now} />
        {kept ? (
          <div class="card">
            <h2>Recommended</h2>
            <p>The recipe is good as it is: nothing near it would be faster without more stale samples.</p>
          </div>
        ) : (
          <Option title={`Recommended: ${gain >= 0 ? '+' : ''}${percent(gain)} samples a second`} of={plan.recommended} />
        )}
        <div class="card">
          <h2>Where the time goes</h2>
          <Facts
            of={[
              ['Engine, a sample', seconds(plan.engine_s_per_sample)],
              ['Trainer, a sample', seconds(plan.trainer_s_per_sample)],
              ['Engines that keep a trainer busy', figure(plan.engines_per_trainer)],
              ['Inference, of all work', percent(plan.inference_share)],
            ]}
          />
          <div class="meter share" role="img" aria-label={`Inference ${percent(plan.inference_share)}, training the rest`}>
            <span style={{ width: percent(plan.inference_share) }} />
          </div>
        </div>
      </div>
      <div class="two">
        <div class="card">
          <h2>Speed and staleness of what was tried</h2>
          <Scatter options={options} plan={plan} />
        </div>
        <div class="card">
          <h2>Set it</h2>
          <p class="muted small">{run?.state === 'running' ? 'The run need not stop for it:' : 'In a recipe, or with --set:'}</p>
          <pre class="mono">
            <Said text={run?.state === 'running' ? `etude runs set ${run.directory} ${set.join(' ')}` : set.join('\n')} />
          </pre>
        </div>
      </div>
      <div class="card scroll" tabIndex={0} role="group" aria-label="All that was tried">
        <table aria-label="All that was tried">
          <thead>
            <tr>
              <th scope="col">In flight</th>
              <th scope="col" class="r">Groups a step</th>
              <th scope="col" class="r">Engines</th>
              <th scope="col" class="r">Samples/s</th>
              <th scope="col" class="r">Seconds a step</th>
              <th scope="col" class="r">Engine busy</th>
              <th scope="col" class="r">Trainer busy</th>
              <th scope="col" class="r">Age p50</th>
              <th scope="col" class="r">p99</th>
              <th scope="col" class="r">Stale</th>
            </tr>
          </thead>
          <tbody>
            {options.map((each) => (
              <tr key={`${each.concurrency} ${each.groups_per_step} ${each.engines}`} data-chosen={same(each, plan.recommended) ? '' : undefined}>
                <td>
                  {each.concurrency} {same(each, plan.now) && <span class="badge">now</span>} {same(each, plan.recommended) && <span class="badge accent">recommended</span>}
                </td>
                <td class="r">{each.groups_per_step}</td>
                <td class="r">{each.engines}</td>
                <td class="r">{figure(each.samples_per_s)}</td>
                <td class="r">{figure(each.step_s)}</td>
                <td class="r">{percent(each.engine_busy)}</td>
                <td class="r">{percent(each.trainer_busy)}</td>
                <td class="r">{figure(each.age_p50)}</td>
                <td class="r">{figure(each.age_p99)}</td>
                <td class="r">{percent(each.stale_share, 1)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

function Option({ title, of: option }: { title: string; of: PlanOption }) {
  return (
    <div class="card">
      <h2>{title}</h2>
      <Facts
        of={[
          ['Samples a second', <b>{figure(option.samples_per_s)}</b>],
          ['Rollouts in flight', option.concurrency],
          ['Groups a step', option.groups_per_step],
          ['Engines', option.engines],
          ['Engine busy', percent(option.engine_busy)],
          ['Trainer busy', percent(option.trainer_busy)],
          ['Age, p99', figure(option.age_p99)],
          ['Stale', percent(option.stale_share, 1)],
        ]}
      />
    </div>
  );
}

/** Marks of an axis from 0 to what holds the most, at round figures. */
export function round(most: number): number[] {
  const unit = 10 ** Math.floor(Math.log10(most / 4));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * unit).find((each) => most / each <= 5) ?? most;
  return Array.from({ length: Math.ceil(most / step) + 1 }, (_, at) => Number((at * step).toPrecision(6)));
}

/** Samples a second against the age of the oldest percent: right and low is good. The table below says the same. */
function Scatter({ options, plan }: { options: PlanOption[]; plan: Plan }) {
  const [width, height, left, low] = [620, 250, 40, 34];
  const [at, point] = useState<PlanOption | null>(null);
  const xs = round(Math.max(...options.map((each) => each.samples_per_s)));
  const ys = round(Math.max(1, ...options.map((each) => each.age_p99)));
  const [fast, old] = [xs.at(-1)!, ys.at(-1)!];
  const x = (each: Pick<PlanOption, 'samples_per_s'>) => left + ((width - left - 24) * each.samples_per_s) / fast;
  const y = (each: Pick<PlanOption, 'age_p99'>) => height - low - ((height - low - 12) * each.age_p99) / old;
  return (
    <>
      <svg class="scatter" viewBox={`0 0 ${width} ${height}`} role="img" aria-label="Samples a second against age; the table below has the figures">
        {ys.map((value) => (
          <g key={value}>
            <line x1={left} x2={width - 10} y1={y({ age_p99: value })} y2={y({ age_p99: value })} stroke="var(--line)" />
            <text x={left - 6} y={y({ age_p99: value }) + 4} text-anchor="end">
              {tick(value)}
            </text>
          </g>
        ))}
        {xs.map((value) => (
          <text key={value} x={x({ samples_per_s: value })} y={height - low + 15} text-anchor="middle">
            {tick(value)}
          </text>
        ))}
        <text x={(width + left) / 2} y={height - 3} text-anchor="middle">samples a second</text>
        {options.map((each) => {
          const kind = same(each, plan.recommended) ? 'var(--accent)' : same(each, plan.now) ? 'var(--warn)' : 'var(--line-strong)';
          return <circle key={`${each.concurrency} ${each.groups_per_step} ${each.engines}`} cx={x(each)} cy={y(each)} r={kind === 'var(--line-strong)' ? 5 : 7} fill={kind} fill-opacity="0.85" onMouseEnter={() => point(each)} />;
        })}
      </svg>
      <div class="key">
        <span><i style={{ background: 'var(--warn)' }} />now</span>
        <span><i style={{ background: 'var(--accent)' }} />recommended</span>
        <span>upwards: age in versions, 99th percentile</span>
        {at && <span class="num">{at.concurrency} in flight, {at.groups_per_step} groups a step, {at.engines} engines: {figure(at.samples_per_s)}/s</span>}
      </div>
    </>
  );
}
