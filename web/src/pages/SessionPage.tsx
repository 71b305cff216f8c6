// One session of the product: followed while it is at work, replayed from its first event, and, where work is allowed, spoken to,
// stopped, taken back, gone on with and forked. Everything shown is computed from its log.
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { api, type SessionRow } from '../api/client';
import type { Json, SessionEvent } from '../api/types';
import { plural, whole } from '../format';
import { useKeys } from '../keys';
import { besides, logged, NOTHING, pictured, type Beside, type Item, type LogLine, type SessionCall } from '../model/dialogue';
import { go, place, refine, to } from '../router';
import { work } from '../session';
import { follow } from '../stream';
import { Badge, Empty, Long, Name, Said, Shown, Some } from '../ui/bits';
import { useLoad } from '../ui/load';
import { Questions } from '../ui/Questions';
import '../style/read.css';
import '../style/work.css';

export function SessionPage({ id }: { id: string }) {
  const [{ lines, beside, there }, told] = useState<{ lines: LogLine[]; beside: Beside; there: boolean }>({ lines: [], beside: NOTHING, there: false });
  useEffect(
    () =>
      follow(`session/${id}`, (data) => {
        const event = data as Partial<SessionEvent>;
        told((old) => {
          if (event.line) {
            old.lines.push(event.line as LogLine); // one list that grows: a copy each time would cost its square
            return { ...old, beside: logged(old.beside, event.line as LogLine) };
          }
          if (event.name) return { ...old, there: old.there || event.name === 'now', beside: besides(old.beside, event.name, (event.data ?? {}) as Record<string, Json>) };
          return old;
        });
      }),
    [id],
  );
  const about = useLoad((signal) => api.session(id, signal), [id, beside.state], true);
  const at = Number(place.value.query.get('event')) || null;
  const setAt = (event: number | null) => refine({ event });
  const shown = at === null ? lines.length : Math.min(at, lines.length);
  const items = useMemo(() => pictured(lines.slice(0, shown)), [shown, id]);
  return (
    <Shown from={about} of="the session">
      {(row) => (
        <>
          <Head row={row} beside={beside} lines={lines.length} />
          <Replay lines={lines.length} at={at} set={setAt} />
          {!there && !lines.length && <p class="wait">Loading the log…</p>}
          <Items items={items} />
          {at === null && <Now beside={beside} session={id} />}
          {work.value && at === null && <Speak row={row} beside={beside} />}
          {work.value && at !== null && <ForkHere id={id} line={shown} />}
        </>
      )}
    </Shown>
  );
}

function Head({ row, beside, lines }: { row: SessionRow; beside: Beside; lines: number }) {
  return (
    <>
      <div class="crumb">
        <Name text={row.directory ?? ''} />
        {row.parent && <a href={to(['session', row.parent])}>forked from {row.parent}</a>}
      </div>
      <div class="title">
        <h1>
          <Name text={row.prompts[0] ?? row.id} />
        </h1>
        <Badge tone={beside.state === 'working' ? 'accent' : ''}>
          {beside.state === 'working' && <span class="dot accent live" />}
          {beside.state}
        </Badge>
        <span class="meta">
          {row.model && <Name text={row.model} mono />} {plural(lines, 'event')}
        </span>
      </div>
      {beside.error && (
        <p class="bad">
          <Said text={beside.error} />
        </p>
      )}
    </>
  );
}

/** Any moment of the log; at its end the page follows what comes. */
function Replay({ lines, at, set }: { lines: number; at: number | null; set: (at: number | null) => void }) {
  const step = (by: number) => {
    const next = Math.max(1, (at ?? lines) + by);
    set(next >= lines ? null : next);
  };
  useKeys(
    [
      { keys: '[', does: 'Event before', run: () => step(-1) },
      { keys: ']', does: 'Next event', run: () => step(1) },
      { keys: '0', does: 'Follow what comes', run: () => set(null) },
    ],
    [lines, at],
  );
  return (
    <div class="replay">
      <button class="btn icon" aria-label="Event before" disabled={lines < 2} onClick={() => step(-1)}>
        ‹
      </button>
      <input type="range" min={1} max={Math.max(1, lines)} value={at ?? lines} aria-label="Moment of the session" aria-valuetext={`event ${at ?? lines} of ${lines}`} onInput={(event) => step(event.currentTarget.valueAsNumber - (at ?? lines))} />
      <button class="btn icon" aria-label="Next event" disabled={at === null} onClick={() => step(1)}>
        ›
      </button>
      <span class="muted small num">{at === null ? 'as it is now' : `${whole(at)} of ${whole(lines)}`}</span>
      {at !== null && (
        <button class="btn" onClick={() => set(null)}>
          Now
        </button>
      )}
    </div>
  );
}

const SHOWN = 200;

function Items({ items }: { items: Item[] }) {
  const [all, setAll] = useState(false);
  const end = useRef<HTMLDivElement>(null);
  const near = useRef(true);
  useEffect(() => {
    const look = () => (near.current = innerHeight + scrollY > document.documentElement.scrollHeight - 160);
    addEventListener('scroll', look, { passive: true });
    return () => removeEventListener('scroll', look);
  }, []);
  useEffect(() => {
    if (near.current) end.current?.scrollIntoView({ block: 'end' });
  }, [items]);
  if (!items.length) return <Empty title="Nothing has been said" />;
  const shown = all ? items : items.slice(-SHOWN);
  return (
    <div class="card">
      {shown.length < items.length && (
        <button class="btn" onClick={() => setAll(true)}>
          {plural(items.length - shown.length, 'message')} before these
        </button>
      )}
      {shown.map((item) => (
        <OneItem key={item.line} item={item} />
      ))}
      <div ref={end} />
    </div>
  );
}

function OneItem({ item }: { item: Item }) {
  const who = { prompt: 'user', turn: 'agent', note: '' }[item.kind];
  return (
    <section class={`turn item-${item.kind}`} aria-label={who || 'note'}>
      <div class="n">{who}</div>
      <div class="stack">
        {item.text && (
          <div class={`say${item.kind === 'note' ? ' muted small' : ''}`}>
            <Long text={item.text} />
          </div>
        )}
        {item.kind === 'turn' && item.calls.length > 0 && (
          <div class="calls">
            <Some of={item.calls} what="call">
              {(call, at) => <OneCall key={at} call={call} />}
            </Some>
          </div>
        )}
      </div>
    </section>
  );
}

const written = (value: Json) => (typeof value === 'string' ? value : JSON.stringify(value));

function OneCall({ call }: { call: SessionCall }) {
  const given: [string, Json][] = typeof call.arguments === 'object' && call.arguments !== null && !Array.isArray(call.arguments) ? Object.entries(call.arguments) : [['', call.arguments]];
  return (
    <article class={`call${call.failed ? ' failed' : ''}`} aria-label={`Call of ${call.name}`}>
      <div class="callhead">
        <span class="mono">
          <Said text={call.name} />
        </span>
        {call.failed && <Badge tone="bad">failed</Badge>}
        {call.result === null && <Badge tone="accent">runs</Badge>}
      </div>
      <div class="args">
        {given.map(([name, value]) => (
          <div key={name}>
            <span class="k">
              <Said text={name} />
            </span>
            <pre>
              <Long text={written(value)} />
            </pre>
          </div>
        ))}
      </div>
      {call.result !== null && (
        <div class="result" tabIndex={0} role="group" aria-label="Output">
          <pre>
            <Long text={call.result} />
          </pre>
        </div>
      )}
    </article>
  );
}

/** Characters of a message that is being written, which is drawn with each of its words. */
const WRITTEN = 8000;

/** What is in no log yet: the message that is being written, what commands print, what waits for an answer. */
function Now({ beside, session }: { beside: Beside; session: string }) {
  const { message, printed, questions } = beside;
  const prints = Object.entries(printed).filter(([, text]) => text);
  if (!message.text && !message.calls.length && !prints.length && !questions.length) return null;
  return (
    <div class="card stack" aria-live="polite" aria-label="Just now" role="group">
      {message.text && (
        <div class="say">
          <Said text={message.text.slice(-WRITTEN)} />
        </div>
      )}
      {message.calls.map((call, at) => (
        <pre key={at}>
          <b>{call?.name}</b> <Said text={call?.arguments.slice(-2000) ?? ''} />
        </pre>
      ))}
      {prints.map(([at, text]) => (
        <pre key={at} class="result">
          <Said text={text.slice(-8000)} />
        </pre>
      ))}
      {work.value && questions.map((each) => <Questions key={each.request} session={session} request={each.request} questions={each.questions} who="The agent" />)}
      {!work.value && questions.length > 0 && <p class="warn small">It waits for an answer in the terminal that has it.</p>}
    </div>
  );
}

function ForkHere({ id, line }: { id: string; line: number }) {
  const [fault, setFault] = useState<string | null>(null);
  const fork = () =>
    api.fork(id, line).then(
      (made) => go(to(['session', made.id])),
      (why: unknown) => setFault(why instanceof Error ? why.message : String(why)),
    );
  return (
    <div class="row">
      <button class="btn" onClick={() => void fork()}>
        Fork from here
      </button>
      {fault && (
        <span class="bad small" role="status">
          <Said text={fault} />
        </span>
      )}
    </div>
  );
}

function Speak({ row, beside }: { row: SessionRow; beside: Beside }) {
  const [text, write] = useState('');
  const [fault, setFault] = useState<string | null>(null);
  const doing = (what: Promise<unknown>) => {
    setFault(null);
    what.catch((why: unknown) => setFault(why instanceof Error ? why.message : String(why)));
  };
  const working = beside.state === 'working';
  const send = (event: Event) => {
    event.preventDefault();
    if (working || !text.trim()) return;
    doing(api.prompt(row.id, { text }).then(() => write('')));
  };
  return (
    <form class="card stack" aria-label="Speak" onSubmit={send}>
      <textarea
        class="field"
        rows={2}
        aria-label="Say something to the agent"
        placeholder="Say something to the agent. Ctrl Enter sends it."
        value={text}
        onInput={(event) => write(event.currentTarget.value)}
        onKeyDown={(event) => event.key === 'Enter' && (event.ctrlKey || event.metaKey) && send(event)}
      />
      <div class="row">
        <button class="btn primary" disabled={working || !text.trim()}>
          Send
        </button>
        {working && (
          <button type="button" class="btn" onClick={() => doing(api.does(row.id, 'cancel'))}>
            Stop
          </button>
        )}
        {!working && row.stop === null && row.prompts.length > 0 && (
          <button type="button" class="btn" onClick={() => doing(api.does(row.id, 'resume'))}>
            Go on
          </button>
        )}
        <span class="grow" />
        <button type="button" class="btn" disabled={working || !row.prompts.length} onClick={() => doing(api.undo(row.id))}>
          Undo the last prompt
        </button>
        <button type="button" class="btn" disabled={working || !row.redoable} onClick={() => doing(api.does(row.id, 'redo'))}>
          Redo
        </button>
        <button type="button" class="btn" disabled={working} onClick={() => doing(api.fork(row.id, null).then((made) => go(to(['session', made.id]))))}>
          Fork
        </button>
      </div>
      {fault && (
        <p class="bad small">
          <Said text={fault} />
        </p>
      )}
    </form>
  );
}
