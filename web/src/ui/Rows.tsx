// A table whose rows are chosen with j and k and opened with Enter or a click. Owns which row is chosen; of a long table
// only what is in view is in the page.
import type { ComponentChildren } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { useKeys } from '../keys';
import { useVirtual } from './virtual';

export interface Column<R> {
  name: string;
  label: ComponentChildren;
  cell: (row: R) => ComponentChildren;
  /** `r` sets figures to the right, `wide` cuts long words. */
  kind?: 'r' | 'wide' | 'tick';
  title?: string;
  /** What rows are ordered by when its head is pressed: the largest first, then the smallest, then as they were. */
  sort?: (row: R) => string | number | null;
}

interface Props<R> {
  label: string;
  rows: R[];
  columns: Column<R>[];
  id: (row: R) => string;
  open?: (row: R) => void;
  /** All there are, where more than `rows` can be loaded by `more`. */
  total?: number | null;
  more?: () => void;
  keys?: { key: string; does: string; run: (row: R) => void }[];
}

/** Rows in the order of a column, what has no value last. */
export function ordered<R>(rows: R[], by: (row: R) => string | number | null, falls: boolean): R[] {
  const sign = falls ? -1 : 1;
  return [...rows].sort((one, other) => {
    const [a, b] = [by(one), by(other)];
    if (a === null || b === null) return Number(a === null) - Number(b === null);
    return sign * (typeof a === 'string' ? a.localeCompare(String(b)) : a - Number(b));
  });
}

/** Which column orders the rows; a press on its head turns it round, the third leaves it. */
function useOrder<R>(given: R[], columns: Column<R>[]) {
  const [order, set] = useState<{ name: string; falls: boolean } | null>(null);
  const by = columns.find((each) => each.name === order?.name)?.sort;
  const press = (name: string) => set(order?.name !== name ? { name, falls: true } : order.falls ? { name, falls: false } : null);
  const aria = (each: Column<R>) => (each.sort ? (order?.name !== each.name ? ('none' as const) : order.falls ? ('descending' as const) : ('ascending' as const)) : undefined);
  return { rows: order && by ? ordered(given, by, order.falls) : given, press, aria, sign: (each: Column<R>) => (order?.name === each.name ? (order.falls ? ' \u2193' : ' \u2191') : '') };
}

export function Rows<R>({ label, rows: given, columns, id, open, total, more, keys = [] }: Props<R>) {
  const { rows, press, aria, sign } = useOrder(given, columns);
  const scroller = useRef<HTMLDivElement>(null);
  const [at, setAt] = useState<number | null>(null);
  const now = useRef({ rows, at }); // two keys may come before one is shown
  now.current = { rows, at };
  const view = useVirtual(scroller, rows.length, 31, 10);
  useEffect(() => {
    if (more && view.to >= rows.length - 20) more();
  }, [view.to, rows.length, more]);
  const move = (by: number) => {
    const before = now.current;
    if (!before.rows.length) return;
    const next = before.at === null ? 0 : Math.max(0, Math.min(before.rows.length - 1, before.at + by));
    before.at = next;
    setAt(next);
    view.show(next);
  };
  useEffect(() => {
    // what is chosen has the focus, so that a screen reader tells of it and Enter follows its link
    // unless the next key has moved on already
    if (at === null || now.current.at !== at) return;
    const row = scroller.current?.querySelector('tr[data-chosen]');
    row?.querySelector('a')?.focus({ preventScroll: true });
    row?.scrollIntoView({ block: 'nearest' }); // the table itself may be below what the window shows
  }, [at]);
  const withChosen = (does: (row: R) => void) => () => {
    const chosen = now.current.at === null ? undefined : now.current.rows[now.current.at];
    if (chosen !== undefined) does(chosen);
  };
  useKeys(
    [
      { keys: 'j', does: 'Next row', run: () => move(1) },
      { keys: 'k', does: 'Row before', run: () => move(-1) },
      ...(open ? [{ keys: 'Enter', does: 'Open the row', run: withChosen(open) }] : []),
      ...keys.map(({ key, does, run }) => ({ keys: key, does, run: withChosen(run) })),
    ],
    [rows, open, keys],
  );
  return (
    <div ref={scroller} class="tall" tabIndex={0} role="group" aria-label={label} onKeyDown={(event) => arrows(event, move)}>
      <table aria-label={label} aria-rowcount={(total ?? rows.length) + 1}>
        <thead>
          <tr aria-rowindex={1}>
            {columns.map((each) => (
              <th key={each.name} scope="col" class={each.kind === 'wide' ? undefined : each.kind} title={each.title} aria-sort={aria(each)}>
                {each.sort ? (
                  <button onClick={() => press(each.name)}>
                    {each.label}
                    {sign(each)}
                  </button>
                ) : (
                  each.label
                )}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {view.before > 0 && <Spacer height={view.before} span={columns.length} />}
          {rows.slice(view.from, view.to).map((row, index) => {
            const here = view.from + index;
            return (
              <tr
                key={id(row)}
                ref={view.measure(here)}
                aria-rowindex={here + 2}
                class={open ? 'pick' : undefined}
                data-chosen={here === at ? '' : undefined}
                onFocusIn={() => {
                  now.current.at = here;
                  setAt(here);
                }}
                onClick={(event) => {
                  if (!open || (event.target as Element).closest('a, button, input, label') || getSelection()?.toString()) return;
                  setAt(here);
                  open(row);
                }}
              >
                {columns.map((each) => (
                  <td key={each.name} class={each.kind}>
                    {each.cell(row)}
                  </td>
                ))}
              </tr>
            );
          })}
          {view.after > 0 && <Spacer height={view.after} span={columns.length} />}
        </tbody>
      </table>
    </div>
  );
}

const Spacer = ({ height, span }: { height: number; span: number }) => (
  <tr class="spacer" aria-hidden="true">
    <td colSpan={span} style={{ height: `${height}px` }} />
  </tr>
);

function arrows(event: KeyboardEvent, move: (by: number) => void): void {
  if (event.target !== event.currentTarget) return;
  const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15 }[event.key];
  if (by === undefined) return;
  event.preventDefault();
  move(by);
}
