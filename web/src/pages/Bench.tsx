// Benchmark runs, and two of them compared on the tasks that both have played: how far apart, how sure, which tasks flipped.
import { api } from '../api/client';
import type { BenchComparison, BenchRow } from '../api/types';
import { ago, figure, percent, plural, whole } from '../format';
import { place, refine } from '../router';
import { Badge, Empty, Facts, Name, Said, Shown } from '../ui/bits';
import { Interval } from '../ui/Interval';
import { useLoad } from '../ui/load';

export function Bench() {
  const found = useLoad((signal) => api.bench(signal), ['bench']);
  const [a, b] = [place.value.query.get('a'), place.value.query.get('b')];
  return (
    <>
      <div class="title">
        <h1>Bench</h1>
      </div>
      <Shown from={found} of="the results">
        {({ runs, unread }) => (
          <>
            {Object.entries(unread).map(([where, why]) => (
              <p key={where} class="warn small">
                <Said text={`${where}: ${why}`} />
              </p>
            ))}
            {runs.length ? (
              <Results rows={runs} a={a} b={b} />
            ) : (
              <Empty title="No benchmark result here">
                Start the studio with the directory that <code>etude bench run --out</code> wrote, or one above it.
              </Empty>
            )}
            {a && b && a !== b && <Compared a={a} b={b} />}
            {!(a && b && a !== b) && runs.length > 1 && <p class="muted">Choose a first and a second result to compare them task by task.</p>}
          </>
        )}
      </Shown>
    </>
  );
}

function Results({ rows, a, b }: { rows: BenchRow[]; a: string | null; b: string | null }) {
  return (
    <div class="card scroll" tabIndex={0} role="group" aria-label="Results">
      <table aria-label="Results">
        <thead>
          <tr>
            <th scope="col" class="tick">First</th>
            <th scope="col" class="tick">Second</th>
            <th scope="col">Name</th>
            <th scope="col">Policy</th>
            <th scope="col" class="r">pass@1</th>
            <th scope="col">95% interval</th>
            <th scope="col" class="r">Solved</th>
            <th scope="col" class="r">Tasks</th>
            <th scope="col">Changed</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.id}>
              {(['a', 'b'] as const).map((which) => (
                <td key={which} class="tick">
                  <input type="radio" name={which} aria-label={`${which === 'a' ? 'First' : 'Second'}: ${row.name}`} checked={(which === 'a' ? a : b) === row.id} onChange={() => refine({ [which]: row.id })} />
                </td>
              ))}
              <td>
                <Name text={row.name} />
              </td>
              <td class="wide">
                <Name text={row.policy} mono />
              </td>
              <td class="r">{percent(row.rate, 1)}</td>
              <td>{row.rate !== null && <Interval low={row.low} high={row.high} at={row.rate} from={0} to={1} />}</td>
              <td class="r">
                {whole(row.solved)}
                <span class="muted"> / {whole(row.judged)}</span>
              </td>
              <td class="r">{whole(row.tasks)}</td>
              <td class="muted">{ago(row.updated_at)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

const TONES: Record<string, 'good' | 'bad'> = { better: 'good', worse: 'bad' };

function Compared({ a, b }: { a: string; b: string }) {
  const found = useLoad((signal) => api.compare(a, b, signal), [a, b]);
  return (
    <Shown from={found} of="the comparison">
      {(data) => (
        <section class="stack" aria-label="Compared">
          <Verdict data={data} />
          <div class="grid">
            <Flipped title="Better in the second" tasks={data.better} tone="good" data={data} />
            <Flipped title="Worse in the second" tasks={data.worse} tone="bad" data={data} />
          </div>
        </section>
      )}
    </Shown>
  );
}

function Verdict({ data }: { data: BenchComparison }) {
  const span = 1.15 * Math.max(0.05, Math.abs(data.low), Math.abs(data.high));
  return (
    <div class="card stack">
      <div class="cardhead">
        <h2>The second against the first</h2>
        <Badge tone={TONES[data.verdict] ?? ''}>{data.verdict}</Badge>
      </div>
      <p>
        <Said text={data.said} />
      </p>
      <Facts
        of={[
          [`First: ${data.first.name}`, percent(data.first.rate, 1)],
          [`Second: ${data.second.name}`, percent(data.second.rate, 1)],
          ['Difference', <Interval low={data.low} high={data.high} at={data.difference} from={-span} to={span} wide={220} />],
          [data.test, `p = ${figure(data.p)}`],
          ['Tasks in both', whole(data.tasks)],
          ['Alike', whole(data.alike)],
          ['Left out', whole(data.left_out)],
        ]}
      />
      {!data.same_harness && <p class="warn small">The harness was not the same in both.</p>}
    </div>
  );
}

interface FlippedProps {
  title: string;
  tasks: string[];
  tone: 'good' | 'bad';
  data: BenchComparison;
}

function Flipped({ title, tasks, tone, data }: FlippedProps) {
  const shares = new Map(data.flipped.map((each) => [each.task, each]));
  return (
    <div class="card">
      <div class="cardhead">
        <h2>{title}</h2>
        <Badge tone={tasks.length ? tone : ''}>{plural(tasks.length, 'task')}</Badge>
      </div>
      <ul class="flipped">
        {tasks.slice(0, 500).map((each) => (
          <li key={each} class="row">
            <span class="grow clip">
              <Name text={each} mono />
            </span>
            <span class="muted small num">
              {percent(shares.get(each)?.first)} → {percent(shares.get(each)?.second)}
            </span>
          </li>
        ))}
      </ul>
      {!tasks.length && <p class="muted">None.</p>}
      {tasks.length > 500 && <p class="muted small">{plural(tasks.length - 500, 'task')} more; `etude bench compare` names all.</p>}
    </div>
  );
}
