// The tokens of one segment, coloured by one of their figures. Owns which pieces are loaded (2,000 tokens at a time, those in
// view), the blocks that they are shown in, and the token under the cursor. A segment of 100,000 is 500 blocks, of which
// some ten are in the page.
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { api } from '../api/client';
import type { TokenColumns, TrajectoryRow } from '../api/types';
import { figure, versions, whole } from '../format';
import { difference, scaleOf, WAYS, type Scale, type Way } from '../model/tokens';
import { oneLine } from '../text';
import { Empty, Fault, Said } from './bits';
import { useVirtual } from './virtual';

export const PIECE = 2000;
const BLOCK = 200;

interface Props {
  run: string;
  row: TrajectoryRow;
  segment: number;
  count: number;
  way: Way;
  choose: (way: Way) => void;
  /** The token to begin at. */
  start: number;
}

export function TokenView({ run, row, segment, count, way, choose, start }: Props) {
  const scroller = useRef<HTMLDivElement>(null);
  const { pieces, load, error } = usePieces(run, row.id, segment, count);
  const [cursor, setCursor] = useState<number | null>(start || null);
  const view = useVirtual(scroller, Math.ceil(count / BLOCK), 92, 2);
  useEffect(() => load(view.from * BLOCK, view.to * BLOCK), [view.from, view.to, segment]);
  const sought = useRef<number | null>(start || null);
  useEffect(() => {
    setCursor(start || null);
    sought.current = start || null;
    view.show(Math.floor(start / BLOCK));
  }, [segment, start]);
  useEffect(() => {
    // a block may be higher than the window: the token itself comes into view, once, when it is there
    if (sought.current === null) return;
    const found = scroller.current?.querySelector(`[data-at="${sought.current}"]`);
    if (!found) return view.show(Math.floor(sought.current / BLOCK)); // blocks before it were higher than was guessed
    within(scroller.current!, found);
    sought.current = null;
  });

  const scale = useMemo(() => scaleOf(pieces.values(), row.oldest_version, row.newest_version), [pieces, row]);
  const any = pieces.values().next().value;
  if (!count) return <Empty title="No tokens in this segment" />;
  const move = (by: number) => {
    const next = Math.max(0, Math.min(count - 1, (cursor ?? view.from * BLOCK) + by));
    setCursor(next);
    sought.current = next;
    view.show(Math.floor(next / BLOCK));
  };
  const steps: Record<string, number> = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 20, ArrowUp: -20, PageDown: BLOCK, PageUp: -BLOCK, End: count, Home: -count };
  return (
    <div class="tokens">
      <div class="row">
        <label class="row">
          <span class="muted small">Colour by</span>
          <select class="field" value={way} onChange={(event) => choose(event.currentTarget.value as Way)}>
            {(Object.keys(WAYS) as Way[]).map((each) => (
              <option key={each} value={each} disabled={any ? !WAYS[each].has(any) : false}>
                {WAYS[each].label}
              </option>
            ))}
          </select>
        </label>
        <div class="key">
          {(!any || WAYS[way].has(any)) && WAYS[way].legend(scale).map(([paint, said]) => (
            <span key={said}>
              <i class="edge" style={{ background: paint }} />
              {said}
            </span>
          ))}
        </div>
      </div>
      {any && !WAYS[way].has(any) && (
        <p class="muted small">
          {way === 'logprob' || way === 'version'
            ? 'The run kept nothing of this for these tokens.'
            : 'Known once the trajectory is trained on; this one was not, or not yet.'}
        </p>
      )}
      {error && <Fault why={error} />}
      <div
        ref={scroller}
        class="tokenbox"
        tabIndex={0}
        role="application"
        aria-roledescription="tokens"
        aria-label={`${whole(count)} tokens. Arrows move from token to token; what is known of it stands below.`}
        onKeyDown={(event) => {
          const by = steps[event.key];
          if (by === undefined) return;
          event.preventDefault();
          move(by);
        }}
        onClick={(event) => {
          const at = (event.target as Element).closest('[data-at]')?.getAttribute('data-at');
          if (at) setCursor(Number(at));
        }}
      >
        <div style={{ height: `${view.before}px` }} />
        {Array.from({ length: view.to - view.from }, (_, at) => view.from + at).map((block) => (
          <Block key={block} block={block} count={count} pieces={pieces} way={way} scale={scale} cursor={cursor} measure={view.measure(block)} />
        ))}
        <div style={{ height: `${view.after}px` }} />
      </div>
      <About at={cursor} pieces={pieces} />
    </div>
  );
}

/** Scroll the box, and nothing around it, so that an element is well in it. */
function within(box: Element, found: Element): void {
  const [outer, inner] = [box.getBoundingClientRect(), found.getBoundingClientRect()];
  const room = Math.min(80, outer.height / 4);
  if (inner.top < outer.top + room) box.scrollTop -= outer.top + room - inner.top;
  else if (inner.bottom > outer.bottom - room) box.scrollTop += inner.bottom - (outer.bottom - room);
}

function usePieces(run: string, id: string, segment: number, count: number) {
  const [pieces, set] = useState<Map<number, TokenColumns>>(new Map());
  const [error, setError] = useState<string | null>(null);
  const asked = useRef(new Set<number>());
  const key = `${run} ${id} ${segment}`;
  const now = useRef(key);
  now.current = key;
  useEffect(() => {
    asked.current = new Set();
    set(new Map());
  }, [key]);
  const load = (from: number, to: number) => {
    for (let piece = Math.floor(from / PIECE); piece * PIECE < Math.min(to, count); piece++) {
      if (asked.current.has(piece)) continue;
      asked.current.add(piece);
      api.tokens(run, id, segment, piece * PIECE, PIECE).then(
        (found) => now.current === key && set((old) => new Map(old).set(piece, found)),
        (why: unknown) => {
          asked.current.delete(piece);
          setError(why instanceof Error ? why.message : String(why));
        },
      );
    }
  };
  return { pieces, load, error };
}

interface BlockProps {
  block: number;
  count: number;
  pieces: Map<number, TokenColumns>;
  way: Way;
  scale: Scale;
  cursor: number | null;
  measure: (element: HTMLElement | null) => void;
}

function Block({ block, count, pieces, way, scale, cursor, measure }: BlockProps) {
  const first = block * BLOCK;
  const tokens = pieces.get(Math.floor(first / PIECE));
  const size = Math.min(BLOCK, count - first);
  return (
    <div class="block" ref={measure}>
      <span class="gutter">{whole(first)}</span>
      <pre>
        {tokens
          ? Array.from({ length: size }, (_, index) => {
              const at = (first % PIECE) + index;
              if (tokens.id[at] === undefined) return null;
              const text = textOf(tokens, at);
              const paint = WAYS[way].colour(tokens, at, scale);
              const sampled = tokens.sampled[at] ?? true;
              return (
                <span
                  key={index}
                  data-at={first + index}
                  class={`${sampled ? '' : 'given'}${cursor === first + index ? ' at' : ''}`}
                  style={paint ? { backgroundColor: paint } : undefined}
                >
                  <Said text={text} />
                </span>
              );
            })
          : '…'}
      </pre>
    </div>
  );
}

/** Its text, or its id where the run's tokenizer is not to be had. */
const textOf = (tokens: TokenColumns, at: number) => tokens.text?.[at] ?? `\u27e8${tokens.id[at]}\u27e9`;

/** What is known of the token under the cursor. */
function About({ at, pieces }: { at: number | null; pieces: Map<number, TokenColumns> }) {
  const tokens = at === null ? undefined : pieces.get(Math.floor(at / PIECE));
  if (at === null || !tokens) return <p class="about muted small">Choose a token, by a click or with the arrows, to read its figures.</p>;
  const index = at % PIECE;
  const probability = tokens.logprob[index];
  const mask = tokens.mask?.[index];
  const facts: [string, string][] = [
    ['token', whole(at)],
    ['id', String(tokens.id[index] ?? '')],
    ['text', JSON.stringify(oneLine(textOf(tokens, index)))],
    ['sampled', tokens.sampled[index] === false ? 'no' : 'yes'],
    ['log-probability', figure(probability)],
    ['probability', probability === null || probability === undefined ? figure(null) : figure(Math.exp(probability))],
    ['version', versions(tokens.version[index] ?? null, tokens.version[index] ?? null)],
    ['advantage', figure(tokens.advantage?.[index])],
    ['entropy', figure(tokens.entropy?.[index])],
    ['trainer less sampler', figure(difference(tokens, index))],
    ['trained on', mask === null || mask === undefined ? figure(null) : mask === 'trained' ? 'yes' : mask.replace('_', ' ')],
  ];
  return (
    <dl class="about facts small" aria-live="polite">
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}
