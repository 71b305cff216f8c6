// What a run was measured by: how much its policies solve and how sure that is, how they work, and sessions to read.
import type { ComponentChildren } from 'preact';
import type { Json, Pair, RateRow, ResultsAnswer, RunDetail } from '../api/types';
import { figure, percent, plural, seconds } from '../format';
import { to } from '../router';
import { Facts, Name, OutcomeBadge } from '../ui/bits';
import { Interval } from '../ui/Interval';
import { Members } from '../ui/Members';

const NAMES: Record<string, string> = { base: 'Base', after: 'After RL', control: 'Fine-tuning control' };
const nameOf = (policy: string) => NAMES[policy] ?? policy;

export function Exam({ run, results }: { run: RunDetail; results: ResultsAnswer }) {
  const { policies, sets, rungs, conduct } = results;
  return (
    <section class="card stack" aria-label="Held-out tasks">
      <h2>Held-out tasks, pass@1</h2>
      <Facts big of={[...sets.map((each): [string, string] => [each.name, change(each, policies)]), ...pace(run.summary)]} />
      {policies.includes('control') && <p>{`Fine-tuning control at equal CPU time: ${sets.map((each) => against(each, policies)).filter(Boolean).join('; ')}.`}</p>}
      <ByPolicy label="Solved, with 95% intervals" of="Tasks" rows={sets} policies={policies} cell={(row, at) => <Rate of={row.rates[at]} />} />
      <details>
        <summary>Rung by rung</summary>
        <ByPolicy label="Solved, rung by rung" of="Tasks" rows={rungs} policies={policies} cell={(row, at) => <Rate of={row.rates[at]} />} />
      </details>
      <details>
        <summary>How it works, a session on average</summary>
        <ByPolicy label="How it works" of="Per session" rows={conduct} policies={policies} figures cell={(row, at) => figure(row.means[at])} />
      </details>
    </section>
  );
}

const rateOf = (row: RateRow, policies: string[], policy: string) => {
  const rate = row.rates[policies.indexOf(policy)];
  return rate ? rate.solved / rate.played : null;
};

/** Before, and after where that is known. */
function change(row: RateRow, policies: string[]): string {
  const shares = ['base', 'after'].map((policy) => rateOf(row, policies, policy)).filter((each) => each !== null);
  return shares.map((each) => percent(each)).join(' \u2192 ');
}

function against(row: RateRow, policies: string[]): string | null {
  const [after, control] = ['after', 'control'].map((policy) => rateOf(row, policies, policy));
  return control == null ? null : `${row.name} ${percent(control)}, against ${percent(after)} after reinforcement learning`;
}

function pace(summary: RunDetail['summary']): [string, string][] {
  const { wall_s: wall, samples_per_s: samples } = (summary ?? {}) as Record<string, Json>;
  return [...(typeof wall === 'number' ? [['Took', seconds(wall)] as [string, string]] : []), ...(typeof samples === 'number' ? [['Rollouts a second', figure(samples)] as [string, string]] : [])];
}

interface ByPolicyProps<R> {
  label: string;
  /** What the rows are of. */
  of: string;
  rows: R[];
  policies: string[];
  figures?: boolean;
  cell: (row: R, policy: number) => ComponentChildren;
}

/** A row each, and of each policy what it did there. */
function ByPolicy<R extends { name: string }>({ label, of, rows, policies, figures, cell }: ByPolicyProps<R>) {
  const kind = figures ? 'r' : undefined;
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label={label}>
      <table aria-label={label}>
        <thead>
          <tr>
            <th scope="col">{of}</th>
            {policies.map((each) => (
              <th key={each} scope="col" class={kind}>
                {nameOf(each)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.name}>
              <td class={figures ? 'wrap' : undefined}>
                <Name text={row.name} />
              </td>
              {policies.map((each, at) => (
                <td key={each} class={kind}>
                  {cell(row, at)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Rate({ of: rate }: { of: RateRow['rates'][number] | undefined }) {
  if (!rate) return <span class="muted">not played</span>;
  return (
    <span class="row nowrap">
      <b>{percent(rate.solved / rate.played, 1)}</b>
      <Interval low={rate.low} high={rate.high} at={rate.solved / rate.played} from={0} to={1} wide={110} />
      <span class="muted small">n = {rate.played}</span>
    </span>
  );
}

/** Sessions of the evaluations that are worth reading first. */
export function ToRead({ run, results: { pair, examples } }: { run: string; results: ResultsAnswer }) {
  return (
    <>
      {pair && <SideBySide run={run} pair={pair} />}
      {examples.length > 0 && (
        <section class="card scroll" aria-label="Sessions to read">
          <h2>Sessions to read</h2>
          <table aria-label="Sessions to read">
            <tbody>
              {examples.map(({ title, row }) => (
                <tr key={row.id}>
                  <td>{title}</td>
                  <td>
                    <a class="mono" href={to(['run', run, 'trajectory', row.id])}>
                      {row.id}
                    </a>
                  </td>
                  <td>
                    <OutcomeBadge row={row} />
                  </td>
                  <td class="r">{plural(row.turns, 'turn')}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </section>
      )}
    </>
  );
}

function SideBySide({ run, pair }: { run: string; pair: Pair }) {
  return (
    <section class="stack" aria-label="Side by side">
      <h2>The same task, after reinforcement learning and after fine-tuning</h2>
      <p class="muted">
        Of the tasks that both played, {pair.gained} were solved only after reinforcement learning, and {pair.lost} only by the control.
      </p>
      {pair.played && <Members run={run} members={pair.played.members} parting={pair.played.parting} />}
    </section>
  );
}
