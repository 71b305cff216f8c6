// Every trajectory that was judged: looked for by outcome, task, tool, finding and text, a page of them at a time. The filter
// is in the address.
import { useCallback, useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { api } from '../api/client';
import type { TrajectoriesEvent, TrajectoryRow } from '../api/types';
import { ago, figure, moment, NONE, seconds, versions, whole } from '../format';
import { isReport } from '../api/kept';
import { useKeys } from '../keys';
import { listed } from '../model/listed';
import { runOf } from '../model/runs';
import { line, linked, NAMES, ofAddress, ofRange, parse, rangeOf, strange, WORDS, type FilterQuery } from '../model/filter';
import { go, hash, place, refine, to } from '../router';
import { follow } from '../stream';
import { oneLine } from '../text';
import { Badge, Empty, Fault, Name, OutcomeBadge, Wait } from '../ui/bits';
import { Histogram } from '../ui/Histogram';
import { useLoad } from '../ui/load';
import { Rows, type Column } from '../ui/Rows';
import '../style/chart.css';

const PAGE = 200;
/** Between two looks at how many there are, while the server still reads the archive. */
const LOOK_MS = 1000;
/** The first is the server's own. */
const ORDERS: [value: string, label: string][] = [['-kept', 'Newest first'], ['kept', 'Oldest first'], ['-reward', 'Best first'], ['reward', 'Worst first'], ['-seconds', 'Longest first'], ['-sampled_tokens', 'Most tokens first'], ['-turns', 'Most turns first']];

export function Trajectories({ run }: { run: string }) {
  const query = place.value.query;
  const key = query.toString();
  const filter = useMemo(() => ofAddress(query), [key]);
  const order = query.get('order') ?? '';
  const set = (next: FilterQuery) => refine({ ...Object.fromEntries(NAMES.map((name) => [name, null])), ...next });
  const count = useLoad((signal) => api.count(run, filter, signal), [run, filter], true);
  const filling = count.data?.filling ?? false;
  useEffect(() => {
    if (!filling) return;
    const timer = setTimeout(count.again, LOOK_MS);
    return () => clearTimeout(timer);
  }, [count.data]);
  const rewards = useLoad((signal) => api.histogram(run, { field: 'reward', bins: 40, ...filter, reward: null }, signal), [run, filter], true);
  const [fresh, setFresh] = useState(0);
  const [shown, setShown] = useState(0);
  useEffect(
    () =>
      follow(`run/${run}/trajectories`, (data) => {
        const told = data as Partial<TrajectoriesEvent>;
        if (told.rows) setFresh((value) => value + told.rows!.length);
      }),
    [run],
  );
  const [low, high] = rangeOf(filter.reward);
  return (
    <>
      <div class="title">
        <h1>Trajectories</h1>
        <span class="meta" role="status">
          {count.data && `${whole(count.data.count)} ${Object.keys(filter).length ? 'found' : 'kept'}${filling ? ' so far: the archive is being read' : ''}`}
        </span>
        {fresh > 0 && (
          <button class="btn" onClick={() => (setFresh(0), setShown(shown + 1), count.again(), rewards.again())}>
            {whole(fresh)} new or changed: show
          </button>
        )}
      </div>
      <div class="card stack">
        {isReport ? <InReport filter={filter} clear={() => set({})} /> : <Bar run={run} filter={filter} set={set} order={order} />}
        {rewards.data && rewards.data.counts.length > 0 && (
          <Histogram title="Reward" counts={rewards.data} from={low} to={high} choose={(a, b) => refine({ reward: ofRange([a, b]) })} />
        )}
      </div>
      <List key={`${key} ${shown}`} run={run} filter={filter} order={order} total={count.data?.count ?? null} filling={filling} />
    </>
  );
}

function InReport({ filter, clear }: { filter: FilterQuery; clear: () => void }) {
  return (
    <div class="row">
      <p class="muted small">
        A report holds some of a run's trajectories: those of its first and last steps, and the newest. <code>etude studio</code> has and finds all.
      </p>
      {line(filter) && (
        <button class="btn mono" title="Show all that it holds" onClick={clear}>
          {oneLine(line(filter), 60)} ×
        </button>
      )}
    </div>
  );
}

interface BarProps {
  run: string;
  filter: FilterQuery;
  set: (next: FilterQuery) => void;
  order: string;
}

function Bar({ run, filter, set, order }: BarProps) {
  const values = useLoad((signal) => api.values(run, signal), [run]).data;
  const [written, write] = useState(line(filter));
  useEffect(() => write(line(filter)), [line(filter)]);
  useKeys([{ keys: '/', does: 'Filter', run: () => document.getElementById('filter')?.focus() }], []);
  const only = (name: string, value: string) => {
    const next = { ...filter };
    if (value) next[name] = value;
    else delete next[name];
    set(next);
  };
  return (
    <form
      class="row"
      role="search"
      onSubmit={(event) => {
        event.preventDefault();
        set(parse(written));
      }}
    >
      <input id="filter" class="field grow mono filterline" type="search" aria-label="Filter" aria-describedby="filter-help" placeholder="outcome:cheated tool:grep reward:>0.5 step:3..5 words of the text" value={written} onInput={(event) => write(event.currentTarget.value)} onBlur={() => set(parse(written))} spellcheck={false} autocomplete="off" />
      <Choice label="Outcome" all="Any outcome" value={filter.outcome} of={values?.outcome} choose={(value) => only('outcome', value)} />
      <Choice label="Tool" all="Any tool" value={filter.tool} of={values?.tool} choose={(value) => only('tool', value)} />
      <Choice label="Phase" all="Any phase" value={filter.phase} of={values?.phase} choose={(value) => only('phase', value)} />
      <select class="field" aria-label="Trained on" value={filter.trained ?? ''} onChange={(event) => only('trained', event.currentTarget.value)}>
        <option value="">Trained or not</option>
        <option value="true">trained on</option>
        <option value="false">left out</option>
      </select>
      <select class="field" aria-label="Order" value={order} onChange={(event) => refine({ order: event.currentTarget.value })}>
        {ORDERS.map(([value, label], at) => (
          <option key={value} value={at ? value : ''}>
            {label}
          </option>
        ))}
      </select>
      {Object.keys(filter).length > 0 && (
        <button type="button" class="btn" onClick={() => set({})}>
          Clear
        </button>
      )}
      {strange(written).map((each) => (
        <p key={each} class="warn small" role="status">
          {`\u201c${oneLine(each, 40)}:\u201d is no filter, and is looked for as text. There are ${WORDS.join(', ')}.`}
        </p>
      ))}
      <span id="filter-help" class="sr">
        Words to look for, and {WORDS.join(', ')}, each with a colon and a value.
      </span>
    </form>
  );
}

interface ChoiceProps {
  label: string;
  all: string;
  value: string | undefined;
  /** What there is, and how often. */
  of: Record<string, number> | undefined;
  choose: (value: string) => void;
}

function Choice({ label, all, value = '', of: there = {}, choose }: ChoiceProps) {
  const names = [...new Set([...Object.keys(there), ...(value ? [value] : [])])];
  return (
    <select class="field choice" aria-label={label} value={value} onChange={(event) => choose(event.currentTarget.value)}>
      <option value="">{all}</option>
      {names.map((each) => (
        <option key={each} value={each}>
          {oneLine(each, 40).replaceAll('_', ' ')} ({there[each] ?? 0})
        </option>
      ))}
    </select>
  );
}

interface ListProps {
  run: string;
  filter: FilterQuery;
  order: string;
  total: number | null;
  /** Whether the server still reads the archive: what was not found may come. */
  filling: boolean;
}

const NOTHING = 'This run has no archive that can be read here: it was made without one, its chunks were removed or not copied, or another version of Etude wrote them.';

/** Pages by keyset: the next is asked for when the end comes into view, and nothing is counted off. */
function List({ run, filter, order, total, filling }: ListProps) {
  const [rows, setRows] = useState<TrajectoryRow[]>([]);
  const [next, setNext] = useState<string | null>('');
  const [fault, setFault] = useState<string | null>(null);
  const [asking, setAsking] = useState(false);
  const more = useCallback(() => {
    if (next === null || asking || fault) return;
    setAsking(true);
    api.trajectories(run, { ...filter, order: order || null, limit: PAGE, after: next || null }).then(
      (page) => {
        setRows((old) => [...old, ...(isReport ? page.rows.filter((row) => linked(row, filter)) : page.rows)]);
        setNext(page.next);
        setAsking(false);
      },
      (error: unknown) => {
        setFault(error instanceof Error ? error.message : String(error));
        setAsking(false);
      },
    );
  }, [next, asking, fault, run, order]);
  useEffect(() => {
    if (next === '') more();
  }, [next]);
  const known = useRef(total);
  useEffect(() => {
    if (rows.length || next !== null || known.current === total) return;
    known.current = total; // what there is now came after it was asked for
    setNext('');
  }, [rows, next, total]);
  useEffect(() => {
    listed.value = { run, address: hash.value, ids: rows.map((row) => row.id) };
  }, [rows]);
  if (fault && !rows.length) return <Fault why={fault} />;
  if (!rows.length) {
    if (next !== null || filling) return <Wait of="the trajectories" />;
    return Object.keys(filter).length ? <Empty title="None is like that">Take a word out of the filter.</Empty> : <Empty title="No trajectory is kept">{runOf(run)?.state === 'running' ? 'A run keeps each trajectory when it has been judged; the first comes within seconds of its start.' : NOTHING}</Empty>;
  }
  return (
    <div class="card">
      {fault && <Fault why={fault} again={() => setFault(null)} />}
      <Rows label="Trajectories" rows={rows} columns={columns(run)} id={(row) => row.id} open={(row) => go(to(['run', run, 'trajectory', row.id]))} total={total} more={more} keys={[{ key: 'o', does: 'Open the row\u2019s group', run: (row) => row.phase === 'training' && go(to(['run', run, 'group', row.group_id])) }]} />
    </div>
  );
}

export function columns(run: string): Column<TrajectoryRow>[] {
  return [
    { name: 'id', label: 'Id', kind: 'wide', cell: (row) => <a class="mono" href={to(['run', run, 'trajectory', row.id])}>{row.id}</a> },
    { name: 'outcome', label: 'Outcome', cell: (row) => <OutcomeBadge row={row} /> },
    { name: 'reward', label: 'Reward', kind: 'r', cell: (row) => figure(row.reward) },
    { name: 'phase', label: 'Phase', cell: (row) => (row.phase === 'training' ? <span class="muted">training</span> : <Badge tone="accent">{row.phase}</Badge>) },
    { name: 'task', label: 'Task', kind: 'wide', cell: (row) => <Name text={row.task_id} mono /> },
    { name: 'step', label: 'Step', kind: 'r', cell: (row) => (row.step === null ? (row.dropped ? <Badge title="Why it was not trained on">{row.dropped.replaceAll('_', ' ')}</Badge> : NONE) : <a href={to(['run', run, 'step', row.step])}>{row.step}</a>) },
    { name: 'turns', label: 'Turns', kind: 'r', cell: (row) => whole(row.turns) },
    { name: 'calls', label: 'Calls', kind: 'r', cell: (row) => whole(row.calls) },
    { name: 'tokens', label: 'Tokens', kind: 'r', title: 'Sampled, of all', cell: (row) => <>{whole(row.sampled_tokens)}<span class="muted"> / {whole(row.total_tokens)}</span></> },
    { name: 'versions', label: 'Versions', cell: (row) => versions(row.oldest_version, row.newest_version) },
    { name: 'findings', label: 'Findings', kind: 'r', cell: (row) => (row.findings ? <span class="warn">{row.findings}</span> : '') },
    { name: 'seconds', label: 'Took', kind: 'r', cell: (row) => seconds(row.seconds) },
    { name: 'limit', label: 'Limit', cell: (row) => row.limit ?? '' },
    { name: 'ended', label: 'Judged', cell: (row) => <span class="muted" title={moment(row.ended_at)}>{ago(row.ended_at)}</span> },
  ];
}
