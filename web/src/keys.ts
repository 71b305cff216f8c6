// What the keyboard does. Owns the table of keys: a page adds its own while it is shown, and the help lists what holds now.
// Nothing here fires while somebody types into a field.
import { useLayoutEffect } from 'preact/hooks';
import { signal } from '@preact/signals';

export interface Key {
  /** One key (`j`), or two in a row (`g r`). */
  keys: string;
  does: string;
  run: (event: KeyboardEvent) => void;
}

export const held = signal<Key[]>([]);
let first = '';
let timer: ReturnType<typeof setTimeout> | undefined;

/** Holds these keys while the component is shown. `on` says what they close over. */
export function useKeys(keys: Key[], on: unknown[]): void {
  // with what is drawn, not after it: a busy machine lets a key be pressed in between
  useLayoutEffect(() => {
    held.value = [...held.value, ...keys];
    return () => {
      held.value = held.value.filter((each) => !keys.includes(each));
    };
  }, on);
}

/** Kinds of input that nothing is written into: the page's keys hold beside them. */
const PRESSED = /^(checkbox|radio|range|button|submit)$/;

export const typing = (target: EventTarget | null) =>
  target instanceof HTMLInputElement ? !PRESSED.test(target.type) : target instanceof HTMLElement && (target.isContentEditable || /^(TEXTAREA|SELECT)$/.test(target.tagName));

export function pressed(event: KeyboardEvent): void {
  if (event.defaultPrevented || event.altKey) return;
  const open = document.querySelector('dialog[open]') !== null;
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === 'k') return run('mod+k', event);
  if (open) return;
  if (event.key === 'Escape' && typing(event.target)) {
    event.preventDefault(); // a browser would empty a field of type search
    return (event.target as HTMLElement).blur();
  }
  if (event.ctrlKey || event.metaKey || typing(event.target)) return;
  const both = first ? `${first} ${event.key}` : '';
  clearTimeout(timer);
  first = '';
  if (both && find(both)) return run(both, event);
  if (held.value.some((each) => each.keys.startsWith(event.key + ' '))) {
    first = event.key;
    timer = setTimeout(() => (first = ''), 1200);
    return;
  }
  // Enter and the arrows belong to what has the focus, where that is something to press
  if (event.key === 'Enter' && pressable(event.target)) return;
  run(event.key, event);
}

/** Whether a key means what has the focus. The link of a table's row does not: which row is chosen, the table knows. */
function pressable(target: EventTarget | null): boolean {
  if (!(target instanceof Element) || !target.closest('a, button, summary')) return false;
  return target !== target.closest('tr.pick')?.querySelector('a');
}

/** The newest holder of a key has it. */
const find = (keys: string) => held.value.findLast((each) => each.keys === keys);

function run(keys: string, event: KeyboardEvent): void {
  const found = find(keys);
  if (!found) return;
  event.preventDefault();
  found.run(event);
}
