// What a trajectory changed: its files, and the lines of one when it is opened. Owns that ten thousand files are a list of
// which some forty are in the page, and that a file's lines are asked for when somebody looks.
import { useEffect, useRef, useState } from 'preact/hooks';
import { api } from '../api/client';
import type { FileAnswer, DiffAnswer } from '../api/types';
import { plural } from '../format';
import { useKeys } from '../keys';
import { Empty, Name, Said, Shown } from './bits';
import { useLoad } from './load';
import { useVirtual } from './virtual';

export function DiffView({ run, id, first, total }: { run: string; id: string; first: FileAnswer[]; total: number }) {
  const [files, setFiles] = useState(first);
  const asking = useRef(false);
  const [open, setOpen] = useState<string | null>(files[0]?.path ?? null);
  const scroller = useRef<HTMLDivElement>(null);
  const view = useVirtual(scroller, files.length, 30);
  useEffect(() => {
    if (view.to < files.length - 40 || files.length >= total || asking.current) return;
    asking.current = true;
    api.files(run, id, files.length).then(
      (found) => {
        asking.current = false;
        setFiles((old) => [...old, ...found.rows]);
      },
      () => (asking.current = false),
    );
  }, [view.to, files.length, total]);
  const now = useRef(0); // two keys may come before one is shown
  const move = (by: number) => {
    const next = Math.max(0, Math.min(files.length - 1, now.current + by));
    if (!files[next]) return;
    now.current = next;
    setOpen(files[next].path);
    view.show(next);
  };
  useKeys([{ keys: 'j', does: 'Next file', run: () => move(1) }, { keys: 'k', does: 'File before', run: () => move(-1) }], [files]);
  if (!files.length) return <Empty title="No file was changed">The diff of this trajectory is empty, or the run has kept none.</Empty>;
  return (
    <div class="files">
      <div ref={scroller} class="filelist">
        <ul aria-label={plural(total, 'changed file')} style={{ paddingTop: `${view.before}px`, paddingBottom: `${view.after}px` }}>
          {files.slice(view.from, view.to).map((file, at) => (
            <li key={file.path} ref={view.measure(view.from + at)} aria-setsize={total} aria-posinset={view.from + at + 1}>
              <button aria-current={file.path === open} onClick={() => ((now.current = view.from + at), setOpen(file.path))}>
                <span class="clip">
                  <Name text={file.path} mono />
                </span>
                <span class="num small">
                  {file.binary ? (
                    <span class="muted">binary</span>
                  ) : file.added === null ? (
                    <span class="muted">not counted</span>
                  ) : (
                    <>
                      <span class="good">+{file.added}</span> <span class="bad">−{file.removed}</span>
                    </>
                  )}
                </span>
              </button>
            </li>
          ))}
        </ul>
      </div>
      {open !== null && <OneFile run={run} id={id} path={open} key={open} />}
    </div>
  );
}

function OneFile({ run, id, path }: { run: string; id: string; path: string }) {
  const diff = useLoad((signal) => api.diff(run, id, path, signal), [run, id, path]);
  return (
    <div class="onefile">
      <div class="filehead">
        <Name text={path} mono />
      </div>
      <Shown from={diff} of="the diff">
        {(data) => <Lines diff={data} />}
      </Shown>
    </div>
  );
}

interface Shown {
  kind: string;
  old: number | null;
  now: number | null;
  text: string;
}

/** The lines of all hunks in one list, each with its numbers in the old and the new file. */
export function flat(diff: DiffAnswer): Shown[] {
  const lines: Shown[] = [];
  for (const hunk of diff.hunks) {
    let [old, now] = [hunk.old, hunk.new];
    lines.push({ kind: '@', old: null, now: null, text: `line ${hunk.new}` });
    for (const [kind, text] of hunk.lines) {
      lines.push({ kind, old: kind === 'added' ? null : old, now: kind === 'removed' ? null : now, text });
      if (kind !== 'added') old += 1;
      if (kind !== 'removed') now += 1;
    }
  }
  return lines;
}

function Lines({ diff }: { diff: DiffAnswer }) {
  const lines = flat(diff);
  const scroller = useRef<HTMLDivElement>(null);
  const view = useVirtual(scroller, lines.length, 19, 20);
  if (!lines.length) return <Empty title={diff.binary ? 'A binary file' : diff.cut ? 'Its lines were not kept' : 'No lines to show'}>{diff.cut && 'The session changed more than an archive keeps of one.'}</Empty>;
  return (
    <div ref={scroller} class="difflines" tabIndex={0} role="group" aria-label="Changed lines">
      <div style={{ height: `${view.before}px` }} />
      {lines.slice(view.from, view.to).map((line, at) => (
        <div key={view.from + at} ref={view.measure(view.from + at)} class={`dl ${CLASS[line.kind] ?? ''}`}>
          <span class="ln">{line.old ?? ''}</span>
          <span class="ln">{line.now ?? ''}</span>
          <span class="sign">{SIGNS[line.kind]}</span>
          <pre>
            <Said text={line.text} />
          </pre>
        </div>
      ))}
      <div style={{ height: `${view.after}px` }} />
      {diff.cut && <p class="muted small cutnote">The diff goes on; it was cut here.</p>}
    </div>
  );
}

const CLASS: Record<string, string> = { added: 'plus', removed: 'minus', '@': 'at' };
const SIGNS: Record<string, string> = { added: '+', removed: '\u2212' };
