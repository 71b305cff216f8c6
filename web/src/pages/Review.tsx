// What one agent changed, hunk by hunk. Owns which hunks a person has taken, and that exactly those are brought into the tree.
// Of ten thousand files those in view are in the page; the next come as one goes on.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import { api } from '../api/client';
import type { ChangedFile, ChangesAnswer } from '../api/types';
import { plural, whole } from '../format';
import { useKeys } from '../keys';
import { to } from '../router';
import { oneLine } from '../text';
import { Empty, Name, Said, Shown } from '../ui/bits';
import { flat } from '../ui/DiffView';
import { useLoad } from '../ui/load';
import { useVirtual } from '../ui/virtual';
import '../style/read.css';
import '../style/work.css';

export function Review({ team, agent }: { team: string; agent: string }) {
  const found = useLoad((signal) => api.changes(team, agent, 0, signal), [team, agent]);
  return (
    <>
      <div class="crumb">
        <a href={to(['work'])}>{team}</a>
      </div>
      <Shown from={found} of="the changes">
        {(data) => <Body key={data.commit} team={team} agent={agent} data={data} again={found.again} />}
      </Shown>
    </>
  );
}

/** A hunk by its file and number; of a file that is taken whole, number -1. */
const keyOf = (path: string, hunk: number) => `${hunk} ${path}`;
const keysOf = (file: ChangedFile) => (file.hunks.length ? file.hunks.map((_, at) => keyOf(file.path, at)) : [keyOf(file.path, -1)]);

/** As the server is asked: of each file the numbers of its hunks, null for all of it. With `rest` only those need be named of which
 *  something is left. */
export function chosen(files: ChangedFile[], taken: Set<string>, rest: boolean): Record<string, number[] | null> {
  const found: Record<string, number[] | null> = {};
  for (const file of files) {
    const keys = keysOf(file);
    const numbers = keys.flatMap((key, at) => (taken.has(key) ? [at] : []));
    if (numbers.length < keys.length ? rest || numbers.length : !rest) found[file.path] = numbers.length === keys.length ? null : numbers;
  }
  return found;
}

/** What stands below one another: the head of a file, then its hunks; one that is taken whole has an entry without a hunk. */
interface Entry {
  file: ChangedFile;
  /** Its number among all hunks; null is the head of a file. */
  at: number | null;
  key: string;
  hunk: ChangedFile['hunks'][number] | null;
}

function entriesOf(files: ChangedFile[]): Entry[] {
  let number = 0;
  return files.flatMap((file) => [
    { file, at: null, key: ` ${file.path}`, hunk: null },
    ...keysOf(file).map((key, at) => ({ file, at: number++, key, hunk: file.hunks[at] ?? null })),
  ]);
}

const GONE_ON = 'The agent has gone on since. Look again.';
const why = (error: unknown) => (error instanceof Error ? error.message : String(error));

/** The files of a commit, a page at a time. `come` is told of each page before it is shown, `fault` why one did not come. */
function usePages(team: string, agent: string, first: ChangesAnswer, come: (files: ChangedFile[]) => void, fault: (why: string) => void) {
  const [files, set] = useState(first.files);
  const now = useRef({ files, next: first.next, asking: false });
  const load = async (after: number) => {
    try {
      const found = await api.changes(team, agent, after);
      if (found.commit !== first.commit) throw new Error(GONE_ON);
      come(found.files);
      now.current = { files: [...now.current.files, ...found.files], next: found.next, asking: false };
      set(now.current.files);
    } catch (error) {
      now.current.asking = false;
      fault(why(error));
    }
  };
  const more = () => {
    if (now.current.next === null || now.current.asking) return;
    now.current.asking = true;
    void load(now.current.next);
  };
  return { files, left: first.total - files.length, more };
}

interface BodyProps {
  team: string;
  agent: string;
  data: ChangesAnswer;
  again: () => void;
}

function Body({ team, agent, data, again }: BodyProps) {
  const [taken, take] = useState(() => new Set<string>());
  const [at, setAt] = useState(0);
  /** Whether files that have not come yet are taken too. */
  const [rest, setRest] = useState(false);
  const [said, say] = useState<{ good: boolean; text: string } | null>(null);
  const now = useRef({ taken, at, rest }); // two keys may come before one is shown
  const set = (next: Set<string>, others = now.current.rest) => {
    now.current = { ...now.current, taken: next, rest: others };
    take(next);
    setRest(others);
  };
  const come = (some: ChangedFile[]) => now.current.rest && set(new Set([...now.current.taken, ...some.flatMap(keysOf)]));
  const pages = usePages(team, agent, data, come, (text) => say({ good: false, text }));
  const { files, left } = pages;
  const entries = useMemo(() => entriesOf(files), [files]);
  const places = useMemo(() => entries.flatMap((each, place) => (each.at === null ? [] : [place])), [entries]);
  const isAll = places.length > 0 && (rest || left === 0) && taken.size === places.length;
  const toggle = (some: string[]) => {
    const next = new Set(now.current.taken);
    const on = some.every((each) => next.has(each));
    for (const each of some) on ? next.delete(each) : next.add(each);
    set(next);
  };
  const all = () => (isAll ? set(new Set(), false) : set(new Set(places.map((place) => entries[place]!.key)), true));
  const apply = () => {
    const { taken, rest } = now.current;
    if (!taken.size) return;
    api.apply(team, agent, { commit: data.commit, files: chosen(files, taken, rest), rest }).then(
      ({ paths }) => {
        say({ good: true, text: `In your tree now: ${named(paths)}` });
        set(new Set(), false);
      },
      (error: unknown) => say({ good: false, text: why(error) }),
    );
  };
  const point = (next: number) => {
    now.current.at = next;
    setAt(next);
  };
  const list = useHunks({ entries, places, now, at, point, more: pages.more });
  useKeys(
    [
      { keys: 'j', does: 'Next hunk', run: () => list.move(1) },
      { keys: 'k', does: 'Hunk before', run: () => list.move(-1) },
      { keys: 'x', does: 'Take or leave the hunk', run: () => places[now.current.at] !== undefined && toggle([entries[places[now.current.at]!]!.key]) },
      { keys: 'a', does: 'Bring what is taken into the tree', run: apply },
    ],
    [data, files],
  );
  return (
    <>
      <div class="title">
        <h1>What {agent} changed</h1>
        <span class="meta">
          {plural(data.total, 'file')}
          {left > 0 && `, of which ${whole(files.length)} are here`}
        </span>
        <span class="grow" />
        <button class="btn" onClick={again}>
          Look again
        </button>
        <button class="btn" onClick={all} disabled={!places.length}>
          {isAll ? 'Take none' : 'Take all'}
        </button>
        <button class="btn primary" disabled={!taken.size} onClick={apply}>
          {rest && left > 0 ? `Bring ${plural(taken.size, 'hunk')} and ${plural(left, 'file')} more into my tree` : `Bring ${whole(taken.size)} of ${plural(places.length, 'hunk')} into my tree`}
        </button>
      </div>
      {said && (
        <p class={said.good ? 'good' : 'bad'} role="status">
          <Said text={said.text} />
        </p>
      )}
      {!files.length && <Empty title="Nothing has changed yet" />}
      {files.length > 0 && (
        <div ref={list.scroller} class="card tall reviewlist" tabIndex={0} role="group" aria-label="Changes">
          <div style={{ height: `${list.view.before}px` }} />
          {entries.slice(list.view.from, list.view.to).map((entry, index) => (
            <div key={entry.key} ref={list.view.measure(list.view.from + index)}>
              {entry.at === null ? (
                <Head file={entry.file} taken={taken} toggle={toggle} />
              ) : (
                <Hunk entry={entry} at={entry.at} is={{ here: entry.at === at, taken: taken.has(entry.key) }} toggle={toggle} point={point} lines={list.lines} />
              )}
            </div>
          ))}
          <div style={{ height: `${list.view.after}px` }} />
        </div>
      )}
      {left > 0 && (
        <button class="btn" onClick={pages.more}>
          {plural(left, 'file')} more
        </button>
      )}
    </>
  );
}

interface HunksProps {
  entries: Entry[];
  places: number[];
  now: { current: { at: number } };
  at: number;
  point: (at: number) => void;
  more: () => void;
}

/** Which entries are in the page, how many lines of each, and the way from one hunk to the next. */
function useHunks({ entries, places, now, at, point, more }: HunksProps) {
  const scroller = useRef<HTMLDivElement>(null);
  const view = useVirtual(scroller, entries.length, 90, 4);
  const moved = useRef(false);
  const [shown, show] = useState<Record<string, number>>({});
  useEffect(() => {
    if (view.to >= entries.length - 20) more();
  }, [view.to, entries.length]);
  useLayoutEffect(() => {
    // with what is drawn: later, the focus would take the place of a key that has come since
    if (!moved.current || now.current.at !== at) return;
    moved.current = false;
    document.getElementById(`hunk-${at}`)?.focus();
  }, [at]);
  const move = (by: number) => {
    const next = Math.max(0, Math.min(places.length - 1, now.current.at + by));
    if (places[next] === undefined) return;
    moved.current = true;
    point(next);
    view.show(places[next]!);
  };
  const lines = { of: (key: string) => shown[key] ?? LINES, more: (key: string) => show({ ...shown, [key]: (shown[key] ?? LINES) + LINES }) };
  return { scroller, view, move, lines };
}

const STATUS: Record<string, string> = { A: 'added', M: 'changed', D: 'removed', T: 'of another type' };

/** Paths for a sentence: the first few, and how many others. */
const named = (paths: string[]) => paths.slice(0, 20).join(', ') + (paths.length > 20 ? ` and ${whole(paths.length - 20)} more` : '');

function Head({ file, taken, toggle }: { file: ChangedFile; taken: Set<string>; toggle: (keys: string[]) => void }) {
  const keys = keysOf(file);
  return (
    <label class="row filehead">
      <input type="checkbox" checked={keys.every((each) => taken.has(each))} onChange={() => toggle(keys)} />
      <Name text={file.path} mono />
      <span class="muted small">
        {STATUS[file.status] ?? file.status}
        {file.binary && ', binary'}
      </span>
    </label>
  );
}

interface HunkProps {
  entry: Entry;
  at: number;
  is: { here: boolean; taken: boolean };
  toggle: (keys: string[]) => void;
  point: (at: number) => void;
  lines: { of: (key: string) => number; more: (key: string) => void };
}

function Hunk({ entry: { file, key, hunk }, at, is, toggle, point, lines }: HunkProps) {
  const [here, taken] = [is.here ? ' here' : '', is.taken ? ' taken' : ''];
  if (hunk === null) {
    return (
      <div id={`hunk-${at}`} tabIndex={-1} class={`hunk muted small${here}${taken}`} onFocusIn={() => point(at)}>
        Taken whole, or not at all.
      </div>
    );
  }
  return (
    <div id={`hunk-${at}`} tabIndex={-1} role="group" aria-label={`${oneLine(file.path)}, from line ${hunk.new}`} class={`hunk${here}${taken}`} onFocusIn={() => point(at)}>
      <label class="row small hunkhead">
        <input type="checkbox" checked={is.taken} onChange={() => toggle([key])} />
        <span class="muted">from line {hunk.new}</span>
      </label>
      <Lines hunk={hunk} most={lines.of(key)} more={() => lines.more(key)} />
    </div>
  );
}

const CLASS: Record<string, string> = { added: 'plus', removed: 'minus' };
const SIGN: Record<string, string> = { added: '+', removed: '\u2212' };
/** Lines of a hunk that are shown before somebody asks for more, and so many more each time. */
const LINES = 400;

function Lines({ hunk, most, more }: { hunk: ChangedFile['hunks'][number]; most: number; more: () => void }) {
  const lines = flat({ path: '', binary: false, cut: false, hunks: [hunk] }).slice(1);
  return (
    <>
      {lines.slice(0, most).map((line, at) => (
        <div key={at} class={`dl ${CLASS[line.kind] ?? ''}`}>
          <span class="ln">{line.old ?? ''}</span>
          <span class="ln">{line.now ?? ''}</span>
          <span class="sign">{SIGN[line.kind]}</span>
          <pre>
            <Said text={line.text} />
          </pre>
        </div>
      ))}
      {most < lines.length && (
        <button class="btn quiet" onClick={more}>
          {plural(lines.length - most, 'line')} more
        </button>
      )}
    </>
  );
}
