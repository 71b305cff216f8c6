// Small pieces that every page uses: text that hides nothing, states of waiting and failing, badges, facts, tabs.
import type { ComponentChildren } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { NONE, plural } from '../format';
import { codes, middle, oneLine, pieces } from '../text';
import type { RunRow, TrajectoryRow } from '../api/types';
import type { Loaded } from './load';

const PIECES = 4000;

/** What a model, a file or a user wrote: text nodes, with hidden characters shown. So many of these that a page would be slow with
 *  an element for each are shown in the text itself. */
export function Said({ text }: { text: string }) {
  const found = pieces(text);
  if (found.length > PIECES) return <>{found.map((each) => each.hidden ?? each.text).join('')}</>;
  return (
    <>
      {found.map((each, at) =>
        each.hidden === null ? (
          each.text
        ) : (
          <span key={at} class="ctl" title={codes(each.text)}>
            {each.hidden}
          </span>
        ),
      )}
    </>
  );
}

const LONG = 600;
const MORE = 32_768;
/** How much of a text is shown that is read from its beginning to its end. */
export const WHOLE = 20_000;

/** Text of which a page shows the beginning; the rest comes a window at a time, as somebody asks for it. */
export function Long({ text, first = LONG }: { text: string; first?: number }) {
  const [more, setMore] = useState(0);
  const short = text.slice(0, first + more);
  return (
    <>
      <Said text={short} />
      {short.length < text.length && (
        <button class="btn quiet" onClick={() => setMore(more + MORE)}>
          … {plural(text.length - short.length, 'character')} more
        </button>
      )}
    </>
  );
}

/** The first of many things; as many again each time that somebody asks. */
export function Some<T>({ of: all, most = 50, what, children }: { of: T[]; most?: number; what: string; children: (each: T, at: number) => ComponentChildren }) {
  const [shown, show] = useState(most);
  return (
    <>
      {all.slice(0, shown).map(children)}
      {shown < all.length && (
        <button class="btn" onClick={() => show(shown + most)}>
          {plural(all.length - shown, what)} more
        </button>
      )}
    </>
  );
}

/** A name on one line, cut by the page where it is too long, or to `most` characters; whole in its title. */
export function Name({ text, mono, most }: { text: string; mono?: boolean; most?: number }) {
  const line = oneLine(text);
  return (
    <bdi class={mono ? 'mono' : undefined} title={line}>
      {most ? middle(line, most) : line}
    </bdi>
  );
}

export function Wait({ of: what }: { of: string }) {
  return (
    <div class="wait" role="status">
      Loading {what}…
    </div>
  );
}

export function Fault({ why, again }: { why: string; again?: () => void }) {
  return (
    <div class="fault row" role="alert">
      <span class="grow">
        <Said text={why} />
      </span>
      {again && (
        <button class="btn" onClick={again}>
          Try again
        </button>
      )}
    </div>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <strong>{title}</strong>
      {children && <div>{children}</div>}
    </div>
  );
}

/** Shows what was loaded, or why not yet. What was there stays while it is loaded anew. */
export function Shown<T>({ from, of: what, children }: { from: Loaded<T>; of: string; children: (data: T) => ComponentChildren }) {
  if (from.data !== null) {
    return (
      <>
        {from.error && <Fault why={from.error} again={from.again} />}
        {children(from.data)}
      </>
    );
  }
  return from.error ? <Fault why={from.error} again={from.again} /> : <Wait of={what} />;
}

export type Tone = 'good' | 'bad' | 'warn' | 'accent' | '';

export function Badge({ tone = '', children, title }: { tone?: Tone; children: ComponentChildren; title?: string }) {
  return (
    <span class={`badge ${tone}`} title={title}>
      {children}
    </span>
  );
}

const OUTCOMES: Record<TrajectoryRow['outcome'], [string, Tone]> = {
  scored: ['scored', ''], truncated: ['truncated', 'warn'], infra_failed: ['machinery failed', ''], cheated: ['cheated', 'bad'],
  quarantined: ['quarantined', 'bad'],
};

export function outcomeOf(row: Pick<TrajectoryRow, 'outcome' | 'solved'>): [string, Tone] {
  if (row.solved) return ['solved', 'good'];
  return row.outcome === 'scored' ? ['not solved', ''] : (OUTCOMES[row.outcome] ?? [row.outcome, '']);
}

export function OutcomeBadge({ row }: { row: Pick<TrajectoryRow, 'outcome' | 'solved'> }) {
  const [word, tone] = outcomeOf(row);
  return <Badge tone={tone}>{word}</Badge>;
}

const STATES: Record<RunRow['state'], [Tone, string]> = {
  running: ['accent', 'A process of the studio\u2019s machine has it'], ended: ['good', 'It has come to its end, and written its summary'],
  stopped: ['warn', 'It has not come to its end, and no process has it: etude train RECIPE --resume goes on'],
  copied: ['', 'Its files were made on another machine; whether it goes on there is not known here'],
};
/** What a run's state means. */
export const meaning = (state: RunRow['state']) => STATES[state][1];

export function StateBadge({ state }: { state: RunRow['state'] }) {
  return (
    <Badge tone={STATES[state][0]} title={meaning(state)}>
      {state === 'running' && <span class="dot accent live" />}
      {state}
    </Badge>
  );
}

export function Facts({ of: facts, big }: { of: [string, ComponentChildren][]; big?: boolean }) {
  return (
    <dl class="facts">
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd class={big ? 'big' : undefined}>{value ?? NONE}</dd>
        </div>
      ))}
    </dl>
  );
}

export interface Tab {
  id: string;
  label: string;
  count?: number | string;
}

/** Scrolls a row of links or tabs sideways, as far as one of them is out of view. */
export function sideways(box: Element | null, chosen: Element | null | undefined): void {
  if (!box || !chosen) return;
  const [outer, inner] = [box.getBoundingClientRect(), chosen.getBoundingClientRect()];
  if (inner.left < outer.left) box.scrollLeft -= outer.left - inner.left;
  else if (inner.right > outer.right) box.scrollLeft += inner.right - outer.right;
}

/** Tabs as ARIA has them: one is in the tab order, arrows move. */
export function Tabs({ tabs, now, choose, label }: { tabs: Tab[]; now: string; choose: (id: string) => void; label: string }) {
  const box = useRef<HTMLDivElement>(null);
  const moved = useRef(false);
  useEffect(() => {
    const chosen = box.current?.querySelector<HTMLElement>('[aria-selected="true"]');
    if (moved.current) chosen?.focus();
    sideways(box.current, chosen);
    moved.current = false;
  }, [now]);
  const move = (event: KeyboardEvent) => {
    const by = event.key === 'ArrowRight' ? 1 : event.key === 'ArrowLeft' ? -1 : 0;
    if (!by) return;
    event.preventDefault();
    const at = tabs.findIndex((each) => each.id === now);
    const next = tabs[(at + by + tabs.length) % tabs.length];
    moved.current = true;
    if (next) choose(next.id);
  };
  return (
    <div class="tabs" role="tablist" aria-label={label} ref={box} onKeyDown={move}>
      {tabs.map((each) => (
        <button
          key={each.id}
          role="tab"
          id={`tab-${each.id}`}
          aria-selected={each.id === now}
          aria-controls={each.id === now ? `panel-${each.id}` : undefined}
          tabIndex={each.id === now ? 0 : -1}
          onClick={() => choose(each.id)}
        >
          {each.label}
          {each.count !== undefined && <span class="count">{each.count}</span>}
        </button>
      ))}
    </div>
  );
}

export function Panel({ id, children }: { id: string; children: ComponentChildren }) {
  return (
    <div role="tabpanel" id={`panel-${id}`} aria-labelledby={`tab-${id}`} class="stack">
      {children}
    </div>
  );
}
