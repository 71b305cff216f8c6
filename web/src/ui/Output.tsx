// What a command printed, however long. The page holds one window of it at a time; the next is asked for.
import { useState } from 'preact/hooks';
import { api } from '../api/client';
import type { CallResult, OutputAnswer } from '../api/types';
import { bytes, plural, whole } from '../format';
import { Said } from './bits';

const WINDOW = 32_768;

interface Props {
  run: string;
  id: string;
  /** Null: of the verifier. */
  event: number | null;
  first: CallResult;
}

export function Output({ run, id, event, first }: Props) {
  const [shown, set] = useState<OutputAnswer | null>(null);
  const [fault, setFault] = useState<string | null>(null);
  const show = (from: number) => {
    setFault(null);
    api.output(run, id, event, from, WINDOW).then(
      set,
      (why: unknown) => setFault(why instanceof Error ? why.message : String(why)),
    );
  };
  const end = shown ? shown.begins + shown.text.length : 0;
  const total = shown?.total ?? 0;
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
              <span class="muted grow">The beginning, of {bytes(first.bytes)}.</span>
              <button class="btn" onClick={() => show(0)}>
                Read all
              </button>
            </>
          )}
          {shown && (
            <>
              <span class="muted grow num">
                {whole(shown.begins)} to {whole(end)} of {plural(total, 'character')}
              </span>
              <button class="btn" disabled={shown.begins === 0} onClick={() => show(Math.max(0, shown.begins - WINDOW))}>
                Before
              </button>
              <button class="btn" disabled={end >= total} onClick={() => show(end)}>
                Next
              </button>
              <button class="btn" disabled={end >= total} onClick={() => show(Math.max(0, Math.floor((total - 1) / WINDOW) * WINDOW))}>
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
