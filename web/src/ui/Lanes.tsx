// Rollouts over time, a lane a worker, coloured by the version that sampled each part. Owns the drawing on a canvas of the
// size of the window, however many rows there are, and moving in it by mouse and keyboard.
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import type { Lane } from '../api/types';
import { figure, moment, seconds } from '../format';
import { ofVersion } from '../model/colours';
import { lay, type Laid, type Placed } from '../model/lanes';
import { middle } from '../text';
import { colour, painted } from '../theme';

const ROW = 13;
const LEFT = 92;
const TOP = 20;

interface Props {
  lanes: Lane[];
  /** Rollouts that are not faded. */
  shown: (id: string) => boolean;
  open: (id: string) => void;
}

export function Lanes({ lanes, shown, open }: Props) {
  const laid = useMemo(() => lay(lanes), [lanes]);
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [span, setSpan] = useState<[number, number]>([laid.from, laid.to]);
  const [at, setAt] = useState<number | null>(null);
  const [width, setWidth] = useState(0);
  const chosen = at === null ? null : (laid.placed[at] ?? null);
  const height = Math.min(460, TOP + laid.rows * ROW + 4);

  useEffect(() => setSpan([laid.from, laid.to]), [laid]);
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const sizes = new ResizeObserver(() => setWidth(element.clientWidth));
    sizes.observe(element);
    return () => sizes.disconnect();
  }, []);
  useEffect(() => {
    const draw = () => canvas.current && box.current && paint(canvas.current, laid, span, box.current.scrollTop, width, height, chosen, shown);
    draw();
    box.current?.addEventListener('scroll', draw, { passive: true });
    return () => box.current?.removeEventListener('scroll', draw);
  }, [laid, span, chosen, shown, width, height, painted.value]);

  const pointed = (event: MouseEvent): number | null => {
    if (!canvas.current || !box.current) return null;
    const frame = canvas.current.getBoundingClientRect();
    const time = span[0] + ((event.clientX - frame.left - LEFT) / (width - LEFT)) * (span[1] - span[0]);
    const row = Math.floor((event.clientY - frame.top - TOP + box.current.scrollTop) / ROW);
    const found = laid.placed.findIndex((each) => each.row === row && each.rollout.begun_at <= time && time <= each.rollout.ended_at);
    return found < 0 ? null : found;
  };
  const scale = (by: number) => {
    const middle = chosen ? (chosen.rollout.begun_at + chosen.rollout.ended_at) / 2 : (span[0] + span[1]) / 2;
    setSpan(clamped([middle + (span[0] - middle) * by, middle + (span[1] - middle) * by], laid));
  };
  const key = (event: KeyboardEvent) => {
    const found = moves(event.key, laid, at);
    if (found !== undefined) {
      setAt(found);
      if (found !== null && box.current) box.current.scrollTop = Math.max(0, laid.placed[found]!.row * ROW - height / 2);
    } else if (event.key === 'Enter' && chosen) open(chosen.rollout.id);
    else if (event.key === '+' || event.key === '=') scale(0.6);
    else if (event.key === '-') scale(1.7);
    else if (event.key === '0') setSpan([laid.from, laid.to]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <div class="lanes">
      <div
        ref={box}
        class="lanesbox"
        style={{ height: `${height}px` }}
        tabIndex={0}
        role="application"
        aria-roledescription="timeline"
        aria-label={`${laid.placed.length} rollouts of ${laid.workers.length} workers over ${seconds(laid.to - laid.from)}. Arrows move, Enter opens, plus and minus zoom.`}
        onKeyDown={key}
        onMouseMove={(event) => setAt(pointed(event))}
        onClick={(event) => {
          const found = pointed(event);
          if (found !== null) open(laid.placed[found]!.rollout.id);
        }}
        onWheel={(event) => {
          if (!event.ctrlKey && !event.metaKey) return;
          event.preventDefault();
          scale(event.deltaY > 0 ? 1.2 : 0.83);
        }}
      >
        <canvas ref={canvas} aria-hidden="true" />
        <div style={{ height: `${Math.max(0, TOP + laid.rows * ROW + 4 - height)}px` }} />
      </div>
      <div class="row small muted lanesfoot">
        <span class="grow" aria-live="polite">
          {chosen ? said(chosen) : 'Point at a rollout, or move with the arrows; Enter opens it.'}
        </span>
        <button class="btn icon" aria-label="Zoom in" onClick={() => scale(0.6)}>
          +
        </button>
        <button class="btn icon" aria-label="Zoom out" onClick={() => scale(1.7)}>
          −
        </button>
        <button class="btn" onClick={() => setSpan([laid.from, laid.to])}>
          Whole
        </button>
      </div>
    </div>
  );
}

function said({ rollout, worker }: Placed): string {
  const versions = rollout.spans.map(([, , version]) => version);
  const of = versions.length ? (Math.min(...versions) === Math.max(...versions) ? `v${versions[0]}` : `v${Math.min(...versions)}\u2013${Math.max(...versions)}`) : 'no version';
  return `${rollout.id} on ${worker}: ${rollout.outcome.replace('_', ' ')}, reward ${figure(rollout.reward)}, ${of}, ${seconds(rollout.ended_at - rollout.begun_at)} from ${moment(rollout.begun_at)}`;
}

function clamped([from, to]: [number, number], laid: Laid): [number, number] {
  return [Math.max(laid.from, from), Math.min(laid.to, Math.max(to, from + 0.05))];
}

/** The next rollout in a direction; undefined where the key moves nothing. */
function moves(key: string, laid: Laid, at: number | null): number | null | undefined {
  if (!['ArrowLeft', 'ArrowRight', 'ArrowUp', 'ArrowDown'].includes(key)) return undefined;
  const now = at === null ? null : laid.placed[at];
  if (!now) return laid.placed.length ? 0 : null;
  const step = key === 'ArrowUp' || key === 'ArrowLeft' ? -1 : 1;
  const across = key === 'ArrowUp' || key === 'ArrowDown';
  let best = at;
  let least = Infinity;
  laid.placed.forEach((each, index) => {
    const rows = (each.row - now.row) * step;
    const time = (each.rollout.begun_at - now.rollout.begun_at) * step;
    const far = across ? (rows > 0 ? rows * 1e6 + Math.abs(time) : Infinity) : rows === 0 && time > 0 ? time : Infinity;
    if (far < least) [least, best] = [far, index];
  });
  return best;
}

function paint(
  canvas: HTMLCanvasElement, laid: Laid, [from, to]: [number, number], scrolled: number, width: number, height: number,
  chosen: Placed | null, shown: (id: string) => boolean,
): void {
  const dots = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * dots);
  canvas.height = Math.round(height * dots);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext('2d');
  if (!pen || to <= from || width <= LEFT) return;
  pen.scale(dots, dots);
  pen.clearRect(0, 0, width, height);
  pen.font = '11px system-ui, sans-serif';
  const x = (time: number) => LEFT + ((time - from) / (to - from)) * (width - LEFT);
  pen.save();
  pen.beginPath();
  pen.rect(0, TOP, width, height - TOP);
  pen.clip();
  for (const { worker, row, rows } of laid.workers) {
    const y = TOP + row * ROW - scrolled;
    if (y + rows * ROW < 0 || y > height) continue;
    pen.fillStyle = colour('line');
    pen.fillRect(0, y + rows * ROW - 0.5, width, 1);
    pen.fillStyle = colour('muted');
    pen.fillText(middle(worker, 15), 2, Math.max(TOP, y) + 10, LEFT - 8);
  }
  for (const each of laid.placed) {
    const y = TOP + each.row * ROW - scrolled;
    if (y < TOP - ROW || y > height || each.rollout.ended_at < from || each.rollout.begun_at > to) continue;
    one(pen, each, y, x, laid, shown(each.rollout.id), each === chosen);
  }
  pen.restore();
  ticks(pen, from, to, x, laid.from, width);
}

function one(pen: CanvasRenderingContext2D, { rollout }: Placed, y: number, x: (time: number) => number, laid: Laid, shown: boolean, chosen: boolean): void {
  const left = Math.max(LEFT, x(rollout.begun_at));
  const right = Math.max(left + 1.5, x(rollout.ended_at));
  pen.globalAlpha = shown ? 1 : 0.18;
  pen.fillStyle = colour('sunk');
  pen.fillRect(left, y + 1, right - left, ROW - 3);
  pen.fillStyle = colour('line-strong');
  pen.fillRect(left, y + ROW - 4, right - left, 1);
  for (const [begin, end, version] of rollout.spans) {
    const start = Math.max(LEFT, x(begin));
    pen.fillStyle = ofVersion(version, laid.oldest, laid.newest);
    pen.fillRect(start, y + 1, Math.max(1, x(end) - start), ROW - 3);
  }
  const mark = rollout.outcome === 'scored' ? null : rollout.outcome === 'infra_failed' ? 'muted' : rollout.outcome === 'truncated' ? 'warn' : 'bad';
  if (mark) {
    pen.fillStyle = colour(mark);
    pen.fillRect(right - 3, y + 1, 3, ROW - 3);
  }
  if (chosen) {
    pen.strokeStyle = colour('text');
    pen.lineWidth = 1.5;
    pen.strokeRect(left - 0.5, y + 0.5, right - left + 1, ROW - 2);
  }
  pen.globalAlpha = 1;
}

function ticks(pen: CanvasRenderingContext2D, from: number, to: number, x: (time: number) => number, zero: number, width: number): void {
  const rough = ((to - from) / Math.max(2, (width - LEFT) / 90));
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * unit).find((each) => each >= rough) ?? rough;
  pen.fillStyle = colour('muted');
  for (let time = Math.ceil((from - zero) / step) * step; time <= to - zero; time += step) {
    const at = x(time + zero);
    pen.fillText(time === 0 ? '0' : seconds(time), Math.min(at, width - 34), 12);
    pen.fillRect(at, 15, 1, 4);
  }
}
