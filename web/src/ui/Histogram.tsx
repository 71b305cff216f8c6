// How often a figure is how large, and a range chosen by dragging over it. Those without a mouse write the range into the
// filter (`reward:0.2..0.8`), which this shows as well.
import { useRef, useState } from 'preact/hooks';
import type { Bins as Counts } from '../api/types';
import { figure, plural } from '../format';

interface Props {
  title: string;
  counts: Counts;
  from: number | null;
  to: number | null;
  choose: (from: number | null, to: number | null) => void;
}

export function Histogram({ title, counts, from, to, choose }: Props) {
  const most = Math.max(1, ...counts.counts);
  const start = useRef<number | null>(null);
  const [drag, setDrag] = useState<[number, number] | null>(null);
  const total = counts.counts.reduce((sum, value) => sum + value, 0);
  const edge = (at: number) => counts.edges[at] ?? 0;
  const inside = (at: number) => {
    if (drag) return at >= Math.min(...drag) && at <= Math.max(...drag);
    return (from === null || edge(at + 1) > from) && (to === null || edge(at) <= to);
  };
  const end = () => {
    if (drag) {
      const [low, high] = [Math.min(...drag), Math.max(...drag)];
      choose(edge(low), edge(high + 1));
    }
    start.current = null;
    setDrag(null);
  };
  return (
    <div>
      <div class="ends">
        <span>{title}</span>
        {(from !== null || to !== null) && (
          <button class="btn quiet" onClick={() => choose(null, null)}>
            all
          </button>
        )}
      </div>
      <div
        class="bins"
        role="img"
        aria-label={`${title} of ${plural(total, 'trajectory', 'trajectories')}, from ${figure(edge(0))} to ${figure(counts.edges.at(-1))}`}
        onPointerLeave={end}
        onPointerUp={end}
      >
        {counts.counts.map((count, at) => (
          <div
            key={at}
            class={inside(at) ? undefined : 'out'}
            title={`${figure(edge(at))} to ${figure(edge(at + 1))}: ${count}, solved ${counts.solved[at] ?? 0}`}
            onPointerDown={(event) => {
              event.currentTarget.releasePointerCapture?.(event.pointerId);
              start.current = at;
              setDrag([at, at]);
            }}
            onPointerEnter={() => start.current !== null && setDrag([start.current, at])}
          >
            <i style={{ height: `${(100 * (count - (counts.solved[at] ?? 0))) / most}%` }} />
            <i class="solved" style={{ height: `${(100 * (counts.solved[at] ?? 0)) / most}%` }} />
          </div>
        ))}
      </div>
      <div class="ends">
        <span>{figure(edge(0))}</span>
        <span>{figure(counts.edges.at(-1))}</span>
      </div>
    </div>
  );
}
