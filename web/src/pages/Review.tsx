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
  const found = useLoad((signal) => all(team, agent, signal), [team, agent]);
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

/** All pages of it. */
async function all(team: string, agent: string, signal: AbortSignal): Promise<ChangesAnswer> {
  let found = await api.changes(team, agent, 0, signal);
  const files = [...found.files];
  while (found.next !== null && files.length < 2000) {
    found = await api.changes(team, agent, found.next, signal);
    files.push(...found.files);
  }
  return { ...found, files };
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

function Body({ team, agent, data, again }: BodyProps) {
  const keys = data.files.flatMap(keysOf);
  const [taken, take] = useState(() => new Set<string>());
  const [at, setAt] = useState(0);
  const now = useRef({ taken, at }); // two keys may come before one is shown
  const point = (next: number) => {
    now.current.at = next;
    setAt(next);
  };
  const [said, say] = useState<{ good: boolean; text: string } | null>(null);
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
    api.apply(team, agent, { commit: data.commit, files: chosen(data.files, now.current.taken) }).then(
      ({ paths }) => {
        say({ good: true, text: `In your tree now: ${paths.join(', ')}` });
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
    [data],
  );
  let number = 0;
  return (
    <>
      <div class="title reviewhead">
        <h1>What {agent} changed</h1>
        <span class="meta">{plural(data.total, 'file')}</span>
        <span class="grow" />
        <button class="btn" onClick={again}>
          Look again
        </button>
        <button class="btn" onClick={() => toggle(keys)} disabled={!keys.length}>
          {keys.length > 0 && keys.every((each) => taken.has(each)) ? 'Take none' : 'Take all'}
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
      {!data.files.length && <Empty title="Nothing has changed yet" />}
      {data.files.map((file) => {
        const first = number;
        number += keysOf(file).length;
        return <OneFile key={file.path} file={file} first={first} taken={taken} toggle={toggle} here={at} point={point} />;
      })}
    </>
  );
}

const STATUS: Record<string, string> = { A: 'added', M: 'changed', D: 'removed', T: 'of another type' };

interface FileProps {
  file: ChangedFile;
  first: number;
  taken: Set<string>;
  toggle: (keys: string[]) => void;
  here: number;
  point: (at: number) => void;
}

function OneFile({ file, first, taken, toggle, here, point }: FileProps) {
  const keys = keysOf(file);
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
        return (
          <div key={key} id={`hunk-${first + at}`} tabIndex={-1} class={`hunk${here === first + at ? ' here' : ''}${taken.has(key) ? ' taken' : ''}`} onFocusIn={() => point(first + at)}>
            <label class="row small hunkhead">
              <input type="checkbox" checked={taken.has(key)} onChange={() => toggle([key])} />
              <span class="muted">from line {hunk.new}</span>
            </label>
            <Lines hunk={hunk} />
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
const SHOWN = 400;

function Lines({ hunk }: { hunk: ChangedFile['hunks'][number] }) {
  const [whole, setWhole] = useState(false);
  const lines = flat({ path: '', binary: false, cut: false, hunks: [hunk] }).slice(1);
  return (
    <>
      {(whole ? lines : lines.slice(0, SHOWN)).map((line, at) => (
        <div key={at} class={`dl ${CLASS[line.kind] ?? ''}`}>
          <span class="ln">{line.old ?? ''}</span>
          <span class="ln">{line.now ?? ''}</span>
          <span class="sign">{SIGN[line.kind]}</span>
          <pre>
            <Said text={line.text} />
          </pre>
        </div>
      ))}
      {!whole && lines.length > SHOWN && (
        <button class="btn quiet" onClick={() => setWhole(true)}>
          {plural(lines.length - SHOWN, 'line')} more
        </button>
      )}
    </>
  );
}
