// Shows what can be seen of a long list. Owns how high each entry is, guessed until it was on the screen, and which
// entries are in view; a list of 100,000 keeps some fifty elements.
import type { RefObject } from 'preact';
import { useCallback, useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';

/** Heights of a list's entries and their sums, as a Fenwick tree: each question takes log n. */
export class Heights {
  private readonly each: Float64Array;
  private readonly tree: Float64Array;

  constructor(readonly count: number, readonly guess: number, old?: Heights) {
    this.each = new Float64Array(count).fill(guess);
    if (old) this.each.set(old.each.subarray(0, Math.min(count, old.count)));
    this.tree = new Float64Array(count + 1);
    for (let at = 1; at <= count; at++) {
      this.tree[at]! += this.each[at - 1]!;
      const above = at + (at & -at);
      if (above <= count) this.tree[above]! += this.tree[at]!;
    }
  }

  /** Returns whether this changed anything. */
  set(index: number, height: number): boolean {
    const more = height - (this.each[index] ?? height);
    if (Math.abs(more) < 0.5) return false;
    this.each[index] = height;
    for (let at = index + 1; at <= this.count; at += at & -at) this.tree[at]! += more;
    return true;
  }

  /** Where an entry begins; of `count`, where the list ends. */
  top(index: number): number {
    let sum = 0;
    for (let at = Math.min(index, this.count); at > 0; at -= at & -at) sum += this.tree[at]!;
    return sum;
  }

  /** The entry at a height; the last one below the end. */
  at(height: number): number {
    let found = 0;
    let rest = height;
    for (let step = 2 ** Math.floor(Math.log2(Math.max(1, this.count))); step >= 1; step /= 2) {
      if (found + step <= this.count && this.tree[found + step]! <= rest) {
        found += step;
        rest -= this.tree[found]!;
      }
    }
    return Math.max(0, Math.min(found, this.count - 1));
  }
}

export interface Visible {
  from: number;
  /** The first that is not shown. */
  to: number;
  /** Room above and below, in pixels. */
  before: number;
  after: number;
  measure: (index: number) => (element: HTMLElement | null) => void;
  /** Scroll an entry into view. */
  show: (index: number) => void;
}

export function useVirtual(scroller: RefObject<HTMLElement | null>, count: number, guess: number, over = 6): Visible {
  const heights = useRef(new Heights(count, guess));
  if (heights.current.count !== count) heights.current = new Heights(count, guess, heights.current);
  const [[from, to], set] = useState<[number, number]>([0, Math.min(count, 30)]);
  const [, again] = useState(0);

  const look = useCallback(() => {
    const box = scroller.current;
    if (!box) return;
    const now = heights.current;
    const first = Math.max(0, now.at(box.scrollTop) - over);
    const last = Math.min(now.count, now.at(box.scrollTop + box.clientHeight) + over + 1);
    set((old) => (old[0] === first && old[1] === last ? old : [first, last]));
  }, [over]);

  useEffect(() => {
    const box = scroller.current;
    if (!box) return;
    look();
    box.addEventListener('scroll', look, { passive: true });
    const sizes = new ResizeObserver(look);
    sizes.observe(box);
    return () => {
      box.removeEventListener('scroll', look);
      sizes.disconnect();
    };
  }, [look, count]);

  const found = useRef(new Map<number, HTMLElement>());
  useLayoutEffect(() => {
    let changed = false;
    for (const [index, element] of found.current) changed = heights.current.set(index, element.offsetHeight) || changed;
    if (changed) {
      again((value) => value + 1);
      look();
    }
  });

  const now = heights.current;
  const end = Math.min(to, count);
  return {
    from: Math.min(from, end),
    to: end,
    before: now.top(Math.min(from, end)),
    after: Math.max(0, now.top(count) - now.top(end)),
    measure: (index) => (element) => {
      if (element) found.current.set(index, element);
      else found.current.delete(index);
    },
    show: (index) => {
      const box = scroller.current;
      if (!box) return;
      const top = now.top(index);
      const bottom = now.top(index + 1);
      if (top < box.scrollTop) box.scrollTop = Math.max(0, top - 40);
      else if (bottom > box.scrollTop + box.clientHeight - 40) box.scrollTop = bottom - box.clientHeight + 40;
      look();
    },
  };
}
