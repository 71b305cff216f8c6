// Benchmark runs, and two of them compared on the tasks that both have played: how far apart, how sure, which tasks flipped.
import { api } from '../api/client';
import type { Json } from '../api/types';
import { ago, figure, NONE, percent, plural, whole } from '../format';
import { place, refine } from '../router';
import { Badge, Empty, Facts, Name, Said, Shown } from '../ui/bits';
import { useLoad } from '../ui/load';

type Row = Record<string, Json>;
const text = (value: Json | undefined) => (typeof value === 'string' ? value : value === null || value === undefined ? NONE : JSON.stringify(value));
const number = (value: Json | undefined) => (typeof value === 'number' ? value : null);
const list = (value: Json | undefined): string[] => (Array.isArray(value) ? value.map(String) : []);

export function Bench() {
  const found = useLoad((signal) => api.bench(signal), ['bench']);
  const [a, b] = [place.value.query.get('a'), place.value.query.get('b')];
  return (
    <>
      <div class="title">
        <h1>Bench</h1>
      </div>
      <Shown from={found} of="the results">
        {(data) => {
          const rows = (Array.isArray(data.runs) ? data.runs : Array.isArray(data.results) ? data.results : []) as Row[];
          if (!rows.length)
            return (
              <Empty title="No benchmark result here">
                Start the studio with the directory that <code>etude bench run --out</code> wrote, or one above it.
              </Empty>
            );
          return (
            <>
              <div class="card scroll" tabIndex={0} role="group" aria-label="Results">
                <table aria-label="Results">
                  <thead>
                    <tr>
                      <th scope="col">First</th>
                      <th scope="col">Second</th>
                      <th scope="col">Name</th>
                      <th scope="col">Policy</th>
                      <th scope="col" class="r">pass@1</th>
                      <th scope="col">95% interval</th>
                      <th scope="col" class="r">Tasks</th>
                      <th scope="col" class="r">Attempts</th>
                      <th scope="col">Changed</th>
                    </tr>
                  </thead>
                  <tbody>
                    {rows.map((row) => (
                      <OneResult key={text(row.id)} row={row} a={a} b={b} />
                    ))}
                  </tbody>
                </table>
              </div>
              {a && b && a !== b ? <Compared a={a} b={b} /> : <p class="muted">{rows.length > 1 ? 'Choose a first and a second result to compare them task by task.' : 'One result; a second one can be compared with it.'}</p>}
            </>
          );
        }}
      </Shown>
    </>
  );
}

function OneResult({ row, a, b }: { row: Row; a: string | null; b: string | null }) {
  const id = text(row.id);
  const pass = (row.pass as Record<string, Row> | undefined)?.['1'] ?? (row.pass1 as Row | undefined);
  const rate = typeof row.pass1 === 'number' ? row.pass1 : number(pass?.rate);
  const interval = list(row.pass1_ci).map(Number);
  const [low, high] = interval.length === 2 ? interval : [number(pass?.low), number(pass?.high)];
  return (
    <tr>
      {(['a', 'b'] as const).map((which) => (
        <td key={which}>
          <input type="radio" name={which} aria-label={`${which === 'a' ? 'First' : 'Second'}: ${text(row.name)}`} checked={(which === 'a' ? a : b) === id} onChange={() => refine({ [which]: id })} />
        </td>
      ))}
      <td>
        <Name text={text(row.name)} />
      </td>
      <td class="wide">
        <Name text={text(row.policy)} />
      </td>
      <td class="r">{percent(rate, 1)}</td>
      <td>
        <Interval low={low ?? null} high={high ?? null} at={rate} from={0} to={1} />
      </td>
      <td class="r">{whole(number(row.tasks))}</td>
      <td class="r">{whole(number(row.attempts ?? row.judged))}</td>
      <td class="muted">{ago(number(row.updated_at))}</td>
    </tr>
  );
}

/** A mean with its interval, drawn from `from` to `to`. */
function Interval({ low, high, at, from, to: until, wide = 150 }: { low: number | null; high: number | null; at: number | null; from: number; to: number; wide?: number }) {
  if (low === null || high === null) return <span class="muted">{NONE}</span>;
  const x = (value: number) => 6 + ((wide - 12) * (value - from)) / (until - from);
  return (
    <span class="row">
      <svg width={wide} height="16" role="img" aria-label={`${percent(low, 1)} to ${percent(high, 1)}`}>
        <line x1="6" x2={wide - 6} y1="8" y2="8" stroke="var(--line)" />
        {from < 0 && <line x1={x(0)} x2={x(0)} y1="1" y2="15" stroke="var(--line-strong)" />}
        <line x1={x(low)} x2={x(high)} y1="8" y2="8" stroke="var(--accent)" stroke-width="3" stroke-linecap="round" />
        {at !== null && <circle cx={x(at)} cy="8" r="4.5" fill="var(--accent)" />}
      </svg>
      <span class="muted small">
        {percent(low, 1)} to {percent(high, 1)}
      </span>
    </span>
  );
}

const TONES: Record<string, 'good' | 'bad' | ''> = { better: 'good', worse: 'bad' };

function Compared({ a, b }: { a: string; b: string }) {
  const found = useLoad((signal) => api.compare(a, b, signal), [a, b]);
  return (
    <Shown from={found} of="the comparison">
      {(data) => {
        const [first, second] = [data.first as Row, data.second as Row];
        const verdict = text(data.verdict);
        const span = Math.max(0.05, Math.abs(number(data.low) ?? 0), Math.abs(number(data.high) ?? 0)) * 1.15;
        return (
          <section class="stack" aria-label="Compared">
            <div class="card stack">
              <div class="cardhead">
                <h2>The second against the first</h2>
                <Badge tone={TONES[verdict] ?? ''}>{verdict}</Badge>
              </div>
              {data.said && (
                <p>
                  <Said text={text(data.said)} />
                </p>
              )}
              <Facts
                of={[
                  [`First: ${text(first?.name)}`, percent(number(first?.rate), 1)],
                  [`Second: ${text(second?.name)}`, percent(number(second?.rate), 1)],
                  ['Difference', <Interval low={number(data.low)} high={number(data.high)} at={number(data.difference)} from={-span} to={span} wide={220} />],
                  [text(data.test), `p = ${figure(number(data.p))}`],
                  ['Tasks in both', whole(number(data.tasks))],
                  ['Alike', whole(number(data.alike))],
                  ['Left out', whole(number(data.left_out))],
                ]}
              />
              {data.same_harness === false && <p class="warn small">The harness was not the same in both.</p>}
            </div>
            <div class="grid">
              <Flipped title="Better in the second" tasks={list(data.better)} tone="good" />
              <Flipped title="Worse in the second" tasks={list(data.worse)} tone="bad" />
            </div>
          </section>
        );
      }}
    </Shown>
  );
}

function Flipped({ title, tasks, tone }: { title: string; tasks: string[]; tone: 'good' | 'bad' }) {
  return (
    <div class="card">
      <div class="cardhead">
        <h2>{title}</h2>
        <Badge tone={tasks.length ? tone : ''}>{plural(tasks.length, 'task')}</Badge>
      </div>
      <ul class="flipped mono">
        {tasks.slice(0, 500).map((each) => (
          <li key={each}>
            <Name text={each} />
          </li>
        ))}
      </ul>
      {!tasks.length && <p class="muted">None.</p>}
    </div>
  );
}
