// The list of trajectories that somebody came from: where it is, and what is in it, so that the next one is a key away.
import { signal } from '@preact/signals';

interface Listed {
  run: string;
  /** With its filter and order. */
  address: string;
  ids: string[];
}

export const listed = signal<Listed | null>(null);

/** How many from one in the list, of those that have come; null where there is none, or it was not in the list. */
export function beside({ value: list }: { value: Listed | null }, run: string, id: string, by: number): string | null {
  const at = list?.run === run ? list.ids.indexOf(id) : -1;
  return at < 0 ? null : (list!.ids[at + by] ?? null);
}
