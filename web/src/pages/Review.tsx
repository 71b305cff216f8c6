// What one agent changed, hunk by hunk. Owns which hunks a person has taken, and that exactly those are brought into the tree.
import { useRef, useState } from 'preact/hooks';
import { api } from '../api/client';
import type { ChangedFile, ChangesAnswer } from '../api/types';
import { plural, whole } from '../format';
import { useKeys } from '../keys';
import { to } from '../router';
import { Empty, Name, Said, Shown } from '../ui/bits';
import { flat } from '../ui/DiffView';
import { useLoad } from '../ui/load';
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

/** As the server is asked: of each file the numbers of its hunks, null for all of it. */
export function chosen(files: ChangedFile[], taken: Set<string>): Record<string, number[] | null> {
  const found: Record<string, number[] | null> = {};
  for (const file of files) {
    const keys = keysOf(file);
    const numbers = keys.flatMap((key, at) => (taken.has(key) ? [at] : []));
    if (numbers.length) found[file.path] = numbers.length === keys.length ? null : numbers;
  }
  return found;
}

interface BodyProps {
  team: string;
  agent: string;
  data: ChangesAnswer;
  again: () => void;
}

const GONE_ON = 'The agent has gone on since. Look again.';

/** The files of a commit, a page more each time that somebody asks. */
function usePages(team: string, agent: string, first: ChangesAnswer, fault: (why: string) => void) {
  const [{ files, next }, set] = useState({ files: first.files, next: first.next });
  const more = () => {
    if (next === null) return;
    api.changes(team, agent, next).then(
      (found) => (found.commit === first.commit ? set({ files: [...files, ...found.files], next: found.next }) : fault(GONE_ON)),
      (why: unknown) => fault(why instanceof Error ? why.message : String(why)),
    );
  };
  return { files, left: first.total - files.length, more };
}

function Body({ team, agent, data, again }: BodyProps) {
  const [taken, take] = useState(() => new Set<string>());
  const [at, setAt] = useState(0);
  const now = useRef({ taken, at }); // two keys may come before one is shown
  const point = (next: number) => {
    now.current.at = next;
    setAt(next);
  };
  const [said, say] = useState<{ good: boolean; text: string } | null>(null);
  const { files, left, more } = usePages(team, agent, data, (text) => say({ good: false, text }));
  const keys = files.flatMap(keysOf);
  const set = (next: Set<string>) => {
    now.current.taken = next;
    take(next);
  };
  const toggle = (some: string[]) => {
    const next = new Set(now.current.taken);
    const on = some.every((each) => next.has(each));
    for (const each of some) on ? next.delete(each) : next.add(each);
    set(next);
  };
  const move = (by: number) => {
    const next = Math.max(0, Math.min(keys.length - 1, now.current.at + by));
    point(next);
    document.getElementById(`hunk-${next}`)?.focus();
  };
  const apply = () => {
    if (!now.current.taken.size) return;
    api.apply(team, agent, { commit: data.commit, files: chosen(files, now.current.taken) }).then(
      ({ paths }) => {
        say({ good: true, text: `In your tree now: ${named(paths)}` });
        set(new Set());
      },
      (why: unknown) => say({ good: false, text: why instanceof Error ? why.message : String(why) }),
    );
  };
  useKeys(
    [
      { keys: 'j', does: 'Next hunk', run: () => move(1) },
      { keys: 'k', does: 'Hunk before', run: () => move(-1) },
      { keys: 'x', does: 'Take or leave the hunk', run: () => keys[now.current.at] !== undefined && toggle([keys[now.current.at]!]) },
      { keys: 'a', does: 'Bring what is taken into the tree', run: apply },
    ],
    [data, files],
  );
  let number = 0;
  let lines = 0;
  return (
    <>
      <div class="title reviewhead">
        <h1>What {agent} changed</h1>
        <span class="meta">
          {plural(data.total, 'file')}
          {left > 0 && `, of which ${whole(files.length)} are here`}
        </span>
        <span class="grow" />
        <button class="btn" onClick={again}>
          Look again
        </button>
        <button class="btn" onClick={() => toggle(keys)} disabled={!keys.length}>
          {keys.length > 0 && keys.every((each) => taken.has(each)) ? 'Take none' : left > 0 ? 'Take all that are here' : 'Take all'}
        </button>
        <button class="btn primary" disabled={!taken.size} onClick={apply}>
          Bring {whole(taken.size)} of {plural(keys.length, 'hunk')} into my tree
        </button>
      </div>
      {said && (
        <p class={said.good ? 'good' : 'bad'} role="status">
          <Said text={said.text} />
        </p>
      )}
      {!files.length && <Empty title="Nothing has changed yet" />}
      {files.map((file) => {
        const first = number;
        const room = Math.max(0, SHOWN - lines);
        number += keysOf(file).length;
        lines += file.hunks.reduce((sum, each) => sum + each.lines.length, 0);
        return <OneFile key={file.path} file={file} first={first} room={room} taken={taken} toggle={toggle} here={at} point={point} />;
      })}
      {left > 0 && (
        <button class="btn" onClick={more}>
          {plural(left, 'file')} more
        </button>
      )}
    </>
  );
}

const STATUS: Record<string, string> = { A: 'added', M: 'changed', D: 'removed', T: 'of another type' };

/** Paths for a sentence: the first few, and how many others. */
const named = (paths: string[]) => paths.slice(0, 20).join(', ') + (paths.length > 20 ? ` and ${whole(paths.length - 20)} more` : '');

interface FileProps {
  file: ChangedFile;
  first: number;
  /** Lines that may be shown at once, of all its hunks. */
  room: number;
  taken: Set<string>;
  toggle: (keys: string[]) => void;
  here: number;
  point: (at: number) => void;
}

function OneFile({ file, first, room, taken, toggle, here, point }: FileProps) {
  const keys = keysOf(file);
  let before = 0;
  return (
    <section class="card reviewfile" aria-label={file.path}>
      <label class="row filehead">
        <input type="checkbox" checked={keys.every((each) => taken.has(each))} onChange={() => toggle(keys)} />
        <Name text={file.path} mono />
        <span class="muted small">
          {STATUS[file.status] ?? file.status}
          {file.binary && ', binary'}
        </span>
      </label>
      {file.hunks.map((hunk, at) => {
        const key = keyOf(file.path, at);
        const most = Math.max(0, room - before);
        before += hunk.lines.length;
        return (
          <div key={key} id={`hunk-${first + at}`} tabIndex={-1} class={`hunk${here === first + at ? ' here' : ''}${taken.has(key) ? ' taken' : ''}`} onFocusIn={() => point(first + at)}>
            <label class="row small hunkhead">
              <input type="checkbox" checked={taken.has(key)} onChange={() => toggle([key])} />
              <span class="muted">from line {hunk.new}</span>
            </label>
            <Lines hunk={hunk} most={most} />
          </div>
        );
      })}
      {!file.hunks.length && (
        <div id={`hunk-${first}`} tabIndex={-1} class={`hunk muted small${here === first ? ' here' : ''}`}>
          Taken whole, or not at all.
        </div>
      )}
    </section>
  );
}

const CLASS: Record<string, string> = { added: 'plus', removed: 'minus' };
const SIGN: Record<string, string> = { added: '+', removed: '\u2212' };
/** Lines of all files that are shown before somebody asks for more. */
const SHOWN = 2000;
const MORE = 400;

function Lines({ hunk, most }: { hunk: ChangedFile['hunks'][number]; most: number }) {
  const [more, setMore] = useState(0);
  const lines = flat({ path: '', binary: false, cut: false, hunks: [hunk] }).slice(1);
  const shown = lines.slice(0, Math.min(most, MORE) + more);
  return (
    <>
      {shown.map((line, at) => (
        <div key={at} class={`dl ${CLASS[line.kind] ?? ''}`}>
          <span class="ln">{line.old ?? ''}</span>
          <span class="ln">{line.now ?? ''}</span>
          <span class="sign">{SIGN[line.kind]}</span>
          <pre>
            <Said text={line.text} />
          </pre>
        </div>
      ))}
      {shown.length < lines.length && (
        <button class="btn quiet" onClick={() => setMore(more + MORE)}>
          {plural(lines.length - shown.length, 'line')} more
        </button>
      )}
    </>
  );
}
