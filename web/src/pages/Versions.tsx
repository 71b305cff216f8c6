// The chain of versions that a run published: how large each was, when the engines had it, and what that cost them. Owns that
// all of them come, a thousand at a time, and that after a step only what is new is asked for.
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { api } from '../api/client';
import { isReport } from '../api/kept';
import type { StepsEvent, VersionRow } from '../api/types';
import { ago, bytes, figure, moment, NONE, plural, seconds } from '../format';
import { to, go } from '../router';
import { follow } from '../stream';
import { Empty, Facts, Shown } from '../ui/bits';
import type { Loaded } from '../ui/load';
import { Rows } from '../ui/Rows';

function useVersions(run: string): Loaded<VersionRow[]> {
  const [rows, set] = useState<VersionRow[] | null>(null);
  const [error, setError] = useState<string | null>(null);
  const now = useRef({ rows: [] as VersionRow[], asking: false, again: false });
  const more = async () => {
    if (now.current.asking) return void (now.current.again = true);
    now.current.asking = true;
    try {
      do {
        now.current.again = false;
        const found = await api.versions(run, now.current.rows.at(-1)?.version ?? null);
        now.current.rows = [...now.current.rows, ...found.rows];
        set(now.current.rows);
        setError(null);
        now.current.again ||= found.next !== null && !isReport;
      } while (now.current.again);
    } catch (why) {
      setError(why instanceof Error ? why.message : String(why));
    } finally {
      now.current.asking = false;
    }
  };
  const anew = () => {
    now.current.rows = [];
    void more();
  };
  useEffect(() => {
    void more();
    return follow(`run/${run}/steps`, (data) => {
      const told = data as StepsEvent;
      if (told.cut !== undefined || told.reset) anew(); // steps were taken back, and their versions with them
      else void more();
    });
  }, [run]);
  return { data: rows, error, loading: rows === null, again: anew };
}

export function Versions({ run }: { run: string }) {
  const found = useVersions(run);
  return (
    <>
      <div class="title">
        <h1>Versions</h1>
        {found.data && <span class="meta">{plural(found.data.length, 'version')}</span>}
      </div>
      <Shown from={found} of="the versions">
        {(rows) => (rows.length ? <Body run={run} rows={rows} /> : <Empty title="No version yet">The trainer publishes one after each step.</Empty>)}
      </Shown>
    </>
  );
}

/** Of each engine; of a run that did not say which, the longest. */
const pauses = (row: VersionRow) => (row.deliveries.length ? row.deliveries.map((each) => each.pause_ms) : row.pause_ms === null ? [] : [row.pause_ms]);
const drawn = (share: number, wide: number, kind = '') => <span class={`bar ${kind}${share > 0 ? '' : ' none'}`} style={{ width: `${wide * share}px` }} />;

function Body({ run, rows }: { run: string; rows: VersionRow[] }) {
  const sorted = useMemo(() => [...rows].sort((a, b) => b.version - a.version), [rows]);
  const most = Math.max(1, ...rows.map((each) => each.bytes ?? 0));
  const longest = Math.max(1e-9, ...rows.flatMap(pauses));
  const total = rows.reduce((sum, each) => sum + (each.bytes ?? 0), 0);
  const all = rows.flatMap(pauses).sort((a, b) => a - b);
  return (
    <>
      <div class="card">
        <Facts
          of={[
            ['Newest', `v${sorted[0]!.version}`],
            ['Bytes published', bytes(total)],
            ['A version, on average', bytes(Math.round(total / Math.max(1, rows.filter((each) => each.bytes !== null).length)))],
            ['Engines paused, middle', all.length ? `${figure(all[Math.floor(all.length / 2)])} ms` : NONE],
            ['Engines paused, most', all.length ? `${figure(all.at(-1))} ms` : NONE],
          ]}
        />
      </div>
      <div class="card">
        <Rows
          label="Versions"
          rows={sorted}
          id={(row) => String(row.version)}
          open={(row) => go(!row.step ? to(['run', run, 'trajectories'], { version: row.version }) : to(['run', run, 'step', row.step]))}
          columns={[
            { name: 'version', label: 'Version', cell: (row) => <a href={to(['run', run, 'trajectories'], { version: row.version })} title="Trajectories with tokens of this version">v{row.version}</a> },
            { name: 'step', label: 'Step', kind: 'r', cell: (row) => (!row.step ? NONE : <a href={to(['run', run, 'step', row.step])}>{row.step}</a>) },
            { name: 'kind', label: 'Kind', cell: (row) => row.kind ?? NONE },
            { name: 'bytes', label: 'Bytes', kind: 'r', cell: (row) => bytes(row.bytes) },
            { name: 'size', label: <span class="sr">Size, drawn</span>, cell: (row) => drawn((row.bytes ?? 0) / most, 110) },
            { name: 'deliveries', label: 'Engines', kind: 'r', title: 'How many took it up', cell: (row) => row.deliveries.length || NONE },
            { name: 'pause', label: 'Pause', kind: 'r', title: 'The longest pause of an engine', cell: (row) => (pauses(row).length ? `${figure(Math.max(...pauses(row)))} ms` : NONE) },
            { name: 'paused', label: <span class="sr">Pause, drawn</span>, cell: (row) => drawn(Math.max(0, ...pauses(row)) / longest, 80, 'pause') },
            { name: 'lag', label: 'Until all had it', kind: 'r', title: 'From the end of its step', cell: (row) => (row.lag_ms === null ? NONE : seconds(row.lag_ms / 1000)) },
            { name: 'published', label: 'Published', cell: (row) => <span class="muted" title={moment(row.published_at)}>{ago(row.published_at)}</span> },
            { name: 'root', label: 'Root', cell: (row) => (row.root ? <span class="mono muted" title={row.root}>{row.root.slice(0, 12)}</span> : NONE) },
          ]}
        />
      </div>
    </>
  );
}
