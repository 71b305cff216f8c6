// What a command printed, however long. The page holds one window of it at a time; the next is asked for.
import { useState } from 'preact/hooks';
import { api } from '../api/client';
import type { Cut } from '../api/kept';
import { bytes } from '../format';
import { Said } from './bits';

const WINDOW = 32_768;

interface Props {
  run: string;
  id: string;
  event: number | string;
  first: Cut;
}

export function Output({ run, id, event, first }: Props) {
  const [shown, set] = useState<{ from: number; text: string } | null>(null);
  const [fault, setFault] = useState<string | null>(null);
  const show = (from: number) => {
    setFault(null);
    api.output(run, id, event, from, WINDOW).then(
      (found) => set({ from, text: found.text }),
      (why: unknown) => setFault(why instanceof Error ? why.message : String(why)),
    );
  };
  const end = shown ? Math.min(first.bytes, shown.from + WINDOW) : 0;
  return (
    <>
      <div class={`result${shown ? ' all' : ''}`} tabIndex={0} role="group" aria-label="Output">
        <pre>
          <Said text={shown ? shown.text : first.text} />
          {!first.text && !shown && <span class="muted">(nothing)</span>}
        </pre>
      </div>
      {first.cut && (
        <div class="row small outputfoot">
          {!shown && (
            <>
              <span class="muted grow">Cut here, of {bytes(first.bytes)}.</span>
              <button class="btn" onClick={() => show(0)}>
                Read all
              </button>
            </>
          )}
          {shown && (
            <>
              <span class="muted grow num">
                {bytes(shown.from)} to {bytes(end)} of {bytes(first.bytes)}
              </span>
              <button class="btn" disabled={shown.from === 0} onClick={() => show(Math.max(0, shown.from - WINDOW))}>
                Before
              </button>
              <button class="btn" disabled={end >= first.bytes} onClick={() => show(shown.from + WINDOW)}>
                Next
              </button>
              <button class="btn" disabled={end >= first.bytes} onClick={() => show(Math.max(0, Math.floor((first.bytes - 1) / WINDOW) * WINDOW))}>
                End
              </button>
              <button class="btn" onClick={() => set(null)}>
                Close
              </button>
            </>
          )}
        </div>
      )}
      {fault && <p class="bad small outputfoot">{fault}</p>}
    </>
  );
}
