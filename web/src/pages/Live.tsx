// A run as a whole, and as it goes on: its figures over the steps, what every rollout does now, who is busy, what fails.
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { api } from '../api/client';
import type { Curves, Json, Live, LiveCall, LiveEvent, LiveSlot, RunDetail, RunNote, StepsEvent } from '../api/types';
import { ago, bytes, figure, moment, NONE, percent, plural, seconds, whole } from '../format';
import { useKeys } from '../keys';
import { ofRun } from '../model/colours';
import { runOf } from '../model/runs';
import { added, cut, FIRST, labelOf } from '../model/series';
import { refine, place, to } from '../router';
import { follow } from '../stream';
import { Empty, Facts, Fault, Long, meaning, Name, Panel, Said, Shown, StateBadge, Tabs, Wait } from '../ui/bits';
import { Chart } from '../ui/Chart';
import { useLoad } from '../ui/load';
import { ViewBar } from '../ui/ViewBar';
import { useView } from '../ui/view';
import { Exam, ToRead } from './Results';
import '../style/chart.css';
import '../style/live.css';

export function LivePage({ run }: { run: string }) {
  const row = runOf(run);
  const detail = useLoad((signal) => api.run(run, signal), [run, row?.state, row?.steps, row?.remark], true);
  const tab = place.value.query.get('tab') ?? 'now';
  return (
    <Shown from={detail} of="the run">
      {(found) => (
        <>
          <Head run={{ ...found, ...row }} />
          {(row ?? found).state === 'running' && <Now run={run} />}
          <Tabs
            label="Parts of the run"
            now={tab}
            choose={(id) => refine({ tab: id === 'now' ? null : id })}
            tabs={[{ id: 'now', label: 'Figures' }, { id: 'recipe', label: 'Recipe', count: Object.keys(found.keys).length }, { id: 'counters', label: 'Counters', count: Object.keys(found.counters).length }, { id: 'notes', label: 'Events', count: found.notes.length }]}
          />
          <Panel id={tab}>
            {tab === 'recipe' ? <Table label="Recipe" of={found.keys as Record<string, Json>} /> : tab === 'notes' ? <Notes notes={found.notes} /> : tab === 'counters' ? <Table label="Counters" of={found.counters as Record<string, Json>} /> : <Overview run={{ ...found, ...row }} />}
          </Panel>
        </>
      )}
    </Shown>
  );
}

function Head({ run }: { run: RunDetail }) {
  const kept = useLoad((signal) => api.count(run.id, {}, signal), [run.id, run.steps, run.state, run.remark], true).data?.count ?? run.trajectories;
  return (
    <div class="stack">
      <div class="title">
        <h1>
          <Name text={run.name} />
        </h1>
        <StateBadge state={run.state} />
        <span class="meta">
          begun {moment(run.started_at)}
          {run.updated_at !== null && <>, changed {ago(run.updated_at)}</>}
        </span>
      </div>
      {run.state === 'stopped' && <p class="muted small">{meaning(run.state)}.</p>}
      {run.remark && (
        <p class="warn small" role="status">
          <Said text={run.remark} />
        </p>
      )}
      <div class="card">
        <Facts
          big
          of={[
            ['Steps', run.steps ? <a href={to(['run', run.id, 'step', run.steps])}>{whole(run.steps)}</a> : '0'],
            ['Reward', figure(run.figures.reward)],
            ['Solve rate', percent(run.figures.solve_rate)],
            ['Version', run.version === null ? NONE : <a href={to(['run', run.id, 'versions'])}>v{run.version}</a>],
            ['Trajectories', kept === null ? NONE : <a href={to(['run', run.id, 'trajectories'])}>{whole(kept)}</a>],
            ['Metrics and archive', bytes(run.bytes)],
          ]}
        />
      </div>
    </div>
  );
}

// --- what happens now --------------------------------------------------------------------------------------------------

function Now({ run }: { run: string }) {
  const [live, tell] = useState<Live | null>(null);
  useEffect(() => follow(`run/${run}/live`, (data) => (data as Partial<LiveEvent>).live && tell((data as LiveEvent).live)), [run]);
  if (!live) return <Wait of="what it does now" />;
  return (
    <section class="live" aria-label="Now">
      <div class="card">
        <h2>Now</h2>
        <Facts
          of={[
            ['Phase', live.phase],
            ['For', seconds(live.elapsed_s)],
            ['Left', seconds(live.left_s)],
            ['Samples a second', figure(live.throughput?.samples_per_s)],
            ['Tokens a second', figure(live.throughput?.tokens_per_s)],
            ['Sandboxes', whole(live.sandboxes)],
          ]}
        />
        <Busy name="Engine" share={live.busy?.engine} />
        <Busy name="Trainer" share={live.busy?.trainer} />
        <Counts title="Age of tokens (versions)" of={live.ages} />
        <Counts title="Failures by cause" of={live.failures} none="None." />
      </div>
      <div class="card">
        <Slots slots={live.slots ?? []} run={run} />
      </div>
      <div class="card">
        <Watched watched={live.watched} run={run} />
      </div>
    </section>
  );
}

function Busy({ name, share }: { name: string; share: number | null | undefined }) {
  return (
    <div class="busy small">
      <span class="muted">{name}</span>
      <div class="meter" role="img" aria-label={`${name} busy ${percent(share)}`}>
        <span style={{ width: percent(Math.min(1, share ?? 0)) }} />
      </div>
      <span class="num">{percent(share)}</span>
    </div>
  );
}

function Counts({ title, of: counts, none }: { title: string; of: Record<string, number> | undefined; none?: string }) {
  const all = Object.entries(counts ?? {}).filter(([, value]) => value > 0);
  const most = Math.max(1, ...all.map(([, value]) => value));
  if (!all.length && !none) return null;
  return (
    <div class="counts small">
      <h3>{title}</h3>
      {!all.length && <span class="muted">{none}</span>}
      {all.map(([name, value]) => (
        <div key={name}>
          <span class="clip">
            <Name text={name.replaceAll('_', ' ')} />
          </span>
          <span class="bar" style={{ width: `${Math.max(2, (100 * value) / most)}px` }} />
          <span class="num">{whole(value)}</span>
        </div>
      ))}
    </div>
  );
}

const TONES: Record<string, string> = { running: 'accent', starting: 'warn', rewarding: 'good', scored: 'good', queued: '' };

/** Those that are at work first. */
const ORDER = ['grouped', 'scored', 'sealed', 'queued', 'starting', 'rewarding', 'running'].reverse();

/** Each rollout that is under way, a square by what it does; in words for all of one kind. */
function Slots({ slots, run }: { slots: LiveSlot[]; run: string }) {
  const kinds = new Map<string, number>();
  for (const each of slots) kinds.set(each.state, (kinds.get(each.state) ?? 0) + 1);
  const sorted = [...slots].sort((a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state) || (a.since ?? 0) - (b.since ?? 0));
  return (
    <>
      <div class="cardhead">
        <h2>{plural(slots.length, 'rollout')} under way</h2>
        <div class="key">
          {[...kinds].map(([kind, count]) => (
            <span key={kind}>
              <i class={`slot ${TONES[kind] ?? ''}`} />
              {kind} {count}
            </span>
          ))}
        </div>
      </div>
      {!slots.length && <p class="muted">None just now.</p>}
      <ul class="slots">
        {sorted.slice(0, 400).map((each) => (
          <li key={each.id} class={`slot ${TONES[each.state] ?? ''}`} title={`${each.id}: ${each.state}${each.task ? `, ${each.task}` : ''}${each.since ? `, ${ago(each.since)}` : ''}`}>
            <span class="sr">
              {each.id} {each.state}
            </span>
          </li>
        ))}
      </ul>
      {slots.length > 0 && (
        <div class="scroll slotlist">
          <table class="plain small" aria-label="The longest under way">
            <tbody>
              {sorted.slice(0, 8).map((each) => (
                <tr key={each.id}>
                  <td class="mono">{each.id}</td>
                  <td>{each.state}</td>
                  <td class="muted">{each.since ? seconds(Date.now() / 1000 - each.since) : ''}</td>
                  <td class="wide">{each.task && <a href={to(['run', run, 'trajectories'], { task: each.task })}><Name text={each.task} /></a>}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  );
}

/** One agent's calls as it makes them; the newest stays in view unless somebody has scrolled up. */
function Watched({ watched, run }: { watched: Live['watched']; run: string }) {
  const box = useRef<HTMLDivElement>(null);
  const pinned = useRef(true);
  useEffect(() => {
    if (box.current && pinned.current) box.current.scrollTop = box.current.scrollHeight;
  }, [watched?.id, watched?.calls.length]);
  return (
    <>
      <div class="cardhead">
        <h2>One agent at work</h2>
        {watched && <span class="mono muted">{watched.id}</span>}
      </div>
      {!watched && <p class="muted">None is watched just now.</p>}
      {watched && (
        <div
          ref={box}
          class="watched"
          tabIndex={0}
          role="log"
          aria-label={`Calls of ${watched.id}`}
          onScroll={(event) => {
            const at = event.currentTarget;
            pinned.current = at.scrollHeight - at.scrollTop - at.clientHeight < 30;
          }}
        >
          {watched.calls.slice(-100).map((call, at) => (
            <WatchedCall key={at} call={call} />
          ))}
          {!watched.calls.length && <span class="muted">No call yet.</span>}
        </div>
      )}
      <p class="small muted">
        All that were judged: <a href={to(['run', run, 'trajectories'])}>trajectories</a>
      </p>
    </>
  );
}

function WatchedCall({ call }: { call: LiveCall }) {
  return (
    <pre class={call.failed ? 'bad' : call.failed === null ? 'accent' : undefined}>
      <b>{call.name}</b> <Said text={call.arguments} />
      {call.result && (
        <span class="muted">
          {'\n'}
          <Said text={call.result} />
        </span>
      )}
    </pre>
  );
}

// --- figures -----------------------------------------------------------------------------------------------------------

/** What it was measured by, as far as it was, around its curves. */
function Overview({ run }: { run: RunDetail }) {
  const results = useLoad((signal) => api.results(run.id, signal), [run.id, run.state, run.steps > 0, run.remark], true);
  const found = results.data?.policies.length ? results.data : null;
  return (
    <>
      {results.error && <Fault why={results.error} again={results.again} />}
      {found && <Exam run={run} results={found} />}
      <Figures run={run.id} />
      {found && <ToRead run={run.id} results={found} />}
    </>
  );
}

const PART = 'parts.';
/** Of the reward, as many as are told apart in one chart. */
const partsOf = (names: string[]) => names.filter((each) => each.startsWith(PART)).slice(0, 8);

function Figures({ run }: { run: string }) {
  const view = useView();
  const { from, to: until, zoom, smooth } = view;
  const asked = place.value.query.get('figures') ?? '';
  const more = useMemo(() => asked.split(',').filter(Boolean), [asked]);
  const turn = (name: string) => refine({ figures: (more.includes(name) ? more.filter((each) => each !== name) : [...more, name]).join(',') });
  const [sought, seek] = useState('');
  const [parts, setParts] = useState<string[]>([]);
  const names = useMemo(() => [...FIRST, ...parts, ...more], [parts, more]);
  const curves = useLoad((signal) => api.curves(run, names, from, until, signal), [run, names, from, until], true);
  const shown = useSteps(run, curves.data, until, curves.again);
  useEffect(() => {
    const known = partsOf(shown?.names ?? []);
    if (known.length && known.join() !== parts.join()) setParts(known);
  }, [shown?.names]);
  useKeys([{ keys: '/', does: 'Look for a figure', run: () => document.getElementById('figure')?.focus() }], []);
  return (
    <Shown from={{ ...curves, data: shown }} of="the curves">
      {(data) => {
        const drawn = (each: string) => data.series[each]?.x.length;
        const there = [...FIRST, ...more].filter(drawn);
        const acted = parts.filter((each) => drawn(each) && data.series[each]!.last.some((value) => value !== 0));
        if (!there.length) return <Empty title="No step yet">The curves begin with the first step of the trainer.</Empty>;
        const others = data.names.filter((each) => !names.includes(each) && each.includes(sought));
        return (
          <>
            <ViewBar view={view} x={data.x} />
            <div class="grid">
              {there.map((each) => (
                <div class="card" key={each}>
                  <Chart title={labelOf(each)} zoom={zoom} smooth={smooth} lines={[{ name: labelOf(each), colour: ofRun(0), series: data.series[each]! }]} />
                </div>
              ))}
              {acted.length > 1 && (
                <div class="card">
                  <Chart title="Reward by part" zoom={zoom} smooth={smooth} lines={acted.map((each, at) => ({ name: each.slice(PART.length), colour: ofRun(at), series: data.series[each]! }))} />
                  <div class="key">
                    {acted.map((each, at) => (
                      <span key={each}>
                        <i style={{ background: ofRun(at) }} />
                        <Name text={each.slice(PART.length)} />
                      </span>
                    ))}
                  </div>
                </div>
              )}
            </div>
            <div class="card">
              <div class="cardhead">
                <h2>Other figures</h2>
                <input id="figure" class="field" type="search" placeholder="Name of a figure" aria-label="Look for a figure" value={sought} onInput={(event) => seek(event.currentTarget.value)} />
              </div>
              <div class="row chips">
                {more.map((each) => (
                  <button class="btn mono" key={each} aria-pressed="true" title="Take its chart away" onClick={() => turn(each)}>
                    {each}
                  </button>
                ))}
                {others.slice(0, 80).map((each) => (
                  <button class="btn mono" key={each} aria-pressed="false" onClick={() => turn(each)}>
                    {each}
                  </button>
                ))}
                {!others.length && <span class="muted">No other figure{sought && ' of that name'}.</span>}
              </div>
            </div>
          </>
        );
      }}
    </Shown>
  );
}

/** The curves with the steps that were told of since they were loaded; loaded anew when those are many. */
function useSteps(run: string, curves: Curves | null, until: number | null, again: () => void): Curves | null {
  const [shown, set] = useState(curves);
  const since = useRef(0);
  useEffect(() => {
    since.current = 0;
    set(curves);
  }, [curves]);
  const cursor = curves?.cursor;
  useEffect(() => {
    if (cursor === undefined || until !== null) return;
    return follow(
      `run/${run}/steps`,
      (data) => {
        const told = data as StepsEvent;
        if (told.reset || (since.current += 1) > 400) again();
        else set((old) => old && after(old, told));
      },
      cursor,
    );
  }, [run, until, cursor, again]);
  return shown;
}

/** Curves after an event: a step more, or steps taken back. */
function after(curves: Curves, { step, cut: last }: StepsEvent): Curves {
  const each = (change: (series: Curves['series'][string], name: string) => Curves['series'][string]) =>
    Object.fromEntries(Object.entries(curves.series).map(([name, series]) => [name, change(series, name)]));
  if (typeof last === 'number') return { ...curves, series: each((series) => cut(series, last)), x: [curves.x[0] ?? 0, last] };
  if (!step) return curves;
  const names = curves.names.length ? curves.names : Object.keys(step.figures);
  return { ...curves, names, x: [curves.x[0] ?? step.step, step.step], series: each((series, name) => added(series, step.step, step.figures[name] ?? null)) };
}

/** What happened beside training: restarts, changes by an operator, findings. */
function Notes({ notes }: { notes: RunNote[] }) {
  if (!notes.length) return <Empty title="Nothing of note">Restarts, changes made while the run went on, findings and quarantined rollouts stand here.</Empty>;
  return (
    <div class="card scroll">
      <table aria-label="What happened">
        <tbody>
          {[...notes].reverse().map((each, at) => (
            <tr key={at}>
              <td class="muted">{moment(each.at)}</td>
              <td>{each.kind}</td>
              <td class="wrap mono">
                <Long text={JSON.stringify(each.data)} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Table({ label, of: values }: { label: string; of: Record<string, Json> }) {
  const [sought, seek] = useState('');
  const found = Object.entries(values).filter(([key]) => key.includes(sought));
  useKeys([{ keys: '/', does: 'Look for a key', run: () => document.getElementById('key')?.focus() }], []);
  return (
    <div class="card">
      <div class="cardhead">
        <h2>{label}</h2>
        <input id="key" class="field" type="search" placeholder="Key" aria-label="Look for a key" value={sought} onInput={(event) => seek(event.currentTarget.value)} />
      </div>
      {!found.length ? (
        <Empty title="None" />
      ) : (
        <div class="columns">
          {found.map(([key, value]) => (
            <div key={key}>
              <span class="mono muted clip" title={key}>
                {key}
              </span>
              <span class="mono">
                <Long text={typeof value === 'string' ? value : JSON.stringify(value)} />
              </span>
            </div>
          ))}
        </div>
      )}
    </div>
  );
}
