// The turns of a session: what the model said, and its calls, those of one turn side by side with what each returned. Notes and
// the auditor's findings stand at the call that they are about.
import { useEffect, useState } from 'preact/hooks';
import type { Note, CallAnswer, FindingAnswer, TurnAnswer } from '../api/types';
import { moment, plural, seconds, version } from '../format';
import { useKeys } from '../keys';
import { refine } from '../router';
import { work } from '../session';
import { Badge, Long, Said, Some, WHOLE } from './bits';
import { Output } from './Output';

interface Props {
  run: string;
  id: string;
  turns: TurnAnswer[];
  findings: FindingAnswer[];
  notes: Note[];
  /** The event that the address names. */
  event: number | null;
  annotate: (note: { event: number; text: string }) => Promise<void>;
  forget: (note: Note) => Promise<void>;
}

export function Turns(props: Props) {
  const { turns, event } = props;
  const named = turns.findIndex((turn) => turn.calls.some((call) => call.event === event));
  const [at, setAt] = useState<number | null>(null);
  const move = (by: number) => setAt((old) => Math.max(0, Math.min(turns.length - 1, old === null ? 0 : old + by)));
  useKeys([{ keys: 'j', does: 'Next turn', run: () => move(1) }, { keys: 'k', does: 'Turn before', run: () => move(-1) }], [turns.length]);
  useEffect(() => {
    if (at !== null) document.getElementById(`turn-${at}`)?.focus();
  }, [at]);
  useEffect(() => {
    if (named >= 0) document.getElementById(`event-${event}`)?.scrollIntoView({ block: 'center' });
  }, [named, event]);
  return (
    <div class="card">
      {turns.map((turn, index) => (
        <OneTurn key={turn.n} {...props} turn={turn} index={index} here={index === at || index === named} />
      ))}
    </div>
  );
}

function OneTurn({ turn, index, here, ...props }: Props & { turn: TurnAnswer; index: number; here: boolean }) {
  const failed = turn.calls.filter((call) => call.failed).length;
  return (
    <section id={`turn-${index}`} class={`turn${here ? ' here' : ''}`} tabIndex={-1} aria-label={`Turn ${turn.n + 1}, ${plural(turn.calls_total, 'call')}`}>
      <div class="n">
        <div title={moment(turn.at)}>{turn.kind === 'summary' ? 'summary' : turn.n + 1}</div>
        {turn.version !== null && <div>{version(turn.version)}</div>}
        {turn.tokens && (
          <button class="btn quiet tokenlink" title="Its tokens" onClick={() => refine({ tab: 'tokens', segment: turn.tokens![0] || null, token: turn.tokens![1] })}>
            tokens
          </button>
        )}
      </div>
      <div class="stack">
        {turn.thinking && (
          <details>
            <summary>Thinking</summary>
            <div class="say muted">
              <Long text={turn.thinking} first={WHOLE} />
            </div>
          </details>
        )}
        {turn.text.trim() && (
          <div class="say">
            <Long text={turn.text.trim()} first={WHOLE} />
          </div>
        )}
        {turn.calls.length > 1 && (
          <div class="small muted">
            {turn.calls_total} calls side by side{failed > 0 && `, ${failed} failed`}
          </div>
        )}
        {turn.calls.length > 0 && (
          <div class="calls">
            <Some of={turn.calls} what="call">
              {(call) => <OneCall key={call.event} {...props} call={call} />}
            </Some>
            {turn.calls_total > turn.calls.length && <p class="muted small">{turn.calls_total - turn.calls.length} more calls were made in this message; `etude runs export` has them.</p>}
          </div>
        )}
      </div>
    </section>
  );
}

function OneCall({ run, id, call, findings, notes, event, annotate, forget }: Props & { call: CallAnswer }) {
  const [writing, setWriting] = useState(false);
  const [fault, setFault] = useState<string | null>(null);
  const remove = (note: Note) => forget(note).catch((why: unknown) => setFault(why instanceof Error ? why.message : String(why)));
  const about = findings.filter((each) => each.event === call.event);
  const mine = notes.filter((each) => each.place.event === call.event);
  const took = call.started_at !== null && call.ended_at !== null ? call.ended_at - call.started_at : null;
  return (
    <article id={`event-${call.event}`} class={`call${call.failed ? ' failed' : ''}${about.length ? ' found' : ''}${event === call.event ? ' at' : ''}`} aria-label={`Call of ${call.name}`}>
      <div class="callhead">
        <span class="mono">
          <Said text={call.name} />
        </span>
        {call.failed && <Badge tone="bad">failed</Badge>}
        <span class="grow" />
        {took !== null && <span class="muted small">{seconds(took)}</span>}
        {work.value && (
          <button class="btn quiet notelink" onClick={() => setWriting(!writing)} aria-expanded={writing} aria-label={`Note on this call of ${call.name}`}>
            note
          </button>
        )}
      </div>
      <Arguments of={call.raw ?? call.arguments} />
      {call.result ? <Output run={run} id={id} event={call.event} first={call.result} /> : <p class="muted small outputfoot">It never returned.</p>}
      {(about.length > 0 || mine.length > 0 || writing) && (
        <div class="stack callfoot">
          {about.map((each, at) => (
            <div key={at} class="row small warn nowrap">
              <span class="dot warn" />
              <span class="grow">
                <Long text={each.text} />
              </span>
            </div>
          ))}
          {mine.map((each) => (
            <div key={each.id} class="note small">
              <span class="grow">
                <Said text={each.text} />
              </span>
              <span class="muted">
                <Said text={each.author} />
              </span>
              {work.value && (
                <button class="btn quiet" onClick={() => void remove(each)} aria-label="Take the note away">
                  ×
                </button>
              )}
            </div>
          ))}
          {fault && <p class="bad small">{fault}</p>}
          {writing && <NoteForm save={(text) => annotate({ event: call.event, text }).then(() => setWriting(false))} />}
        </div>
      )}
    </article>
  );
}

function NoteForm({ save }: { save: (text: string) => Promise<void> }) {
  const [text, write] = useState('');
  const [fault, setFault] = useState<string | null>(null);
  return (
    <form
      class="noteform"
      onSubmit={(event) => {
        event.preventDefault();
        if (text.trim()) save(text.trim()).catch((why: unknown) => setFault(why instanceof Error ? why.message : String(why)));
      }}
    >
      <input class="field" aria-label="Note" placeholder="A note on this call" value={text} onInput={(event) => write(event.currentTarget.value)} autofocus />
      <button class="btn primary">Keep</button>
      {fault && <span class="bad small">{fault}</span>}
    </form>
  );
}

function Arguments({ of: given }: { of: string | CallAnswer['arguments'] }) {
  const entries: [string, string][] = typeof given === 'string' ? (given ? [['', given]] : []) : Object.entries(given).map(([name, value]) => [name, typeof value === 'string' ? value : JSON.stringify(value)]);
  if (!entries.length) return null;
  return (
    <div class="args">
      {entries.map(([name, value]) => (
        <div key={name}>
          <span class="k">
            <Said text={name} />
          </span>
          <pre>
            <Long text={value} />
          </pre>
        </div>
      ))}
    </div>
  );
}
