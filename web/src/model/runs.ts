// The list of runs as this tab knows it: one for all pages, told of by the stream from when the tab came in.
import { signal } from '@preact/signals';
import { api } from '../api/client';
import type { RunRow, RunsEvent } from '../api/types';
import { follow } from '../stream';

/** Null while nothing has come yet. */
export const runs = signal<RunRow[] | null>(null);
export const runsFault = signal<string | null>(null);
/** Which stores do not answer, and what in them cannot be read. */
export const remarks = signal<string[]>([]);

export const runOf = (id: string) => runs.value?.find((each) => each.id === id);

/** The list after an event: all of it anew, or what is other than before; the newest first. */
export function after(before: RunRow[], told: RunsEvent): RunRow[] {
  if (told.runs) return told.runs;
  const gone = new Set([...(told.gone ?? []), ...(told.changed ?? []).map((each) => each.id)]);
  const rows = [...before.filter((each) => !gone.has(each.id)), ...(told.changed ?? [])];
  return rows.sort((a, b) => b.updated_at - a.updated_at || (a.id < b.id ? -1 : 1));
}

/** From now on; returns what ends it. The first list is asked for beside the stream, which has to be opened first. */
export function followRuns(): () => void {
  api.runs().then(
    (found) => {
      if (runs.value === null) [runs.value, remarks.value] = [found.runs, found.remarks];
      runsFault.value = null;
    },
    (why: unknown) => (runsFault.value = why instanceof Error ? why.message : String(why)),
  );
  return follow('runs', (data) => {
    const told = data as RunsEvent;
    if (told.runs || told.changed) {
      runs.value = after(runs.value ?? [], told);
      runsFault.value = null;
    }
    remarks.value = told.remarks ?? remarks.value;
  });
}
