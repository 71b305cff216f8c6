// Puts rollouts that overlap beside each other: each worker's lane has as many rows as it had rollouts at once.
import type { Lane, LaneRollout } from '../api/types';

export interface Placed {
  rollout: LaneRollout;
  worker: string;
  row: number;
}
export interface Laid {
  placed: Placed[];
  rows: number;
  /** The first row of each worker. */
  workers: { worker: string; row: number; rows: number }[];
  from: number;
  to: number;
  oldest: number;
  newest: number;
}

export function lay(lanes: Lane[]): Laid {
  const laid: Laid = { placed: [], rows: 0, workers: [], from: Infinity, to: -Infinity, oldest: Infinity, newest: -Infinity };
  for (const { worker, rollouts } of lanes) {
    const free: number[] = []; // when each row of this worker is free again
    for (const rollout of [...rollouts].sort((a, b) => a.begun_at - b.begun_at)) {
      let row = free.findIndex((until) => until <= rollout.begun_at);
      if (row < 0) row = free.push(0) - 1;
      free[row] = rollout.ended_at;
      laid.placed.push({ rollout, worker, row: laid.rows + row });
      laid.from = Math.min(laid.from, rollout.begun_at);
      laid.to = Math.max(laid.to, rollout.ended_at);
      for (const [, , version] of rollout.spans) {
        laid.oldest = Math.min(laid.oldest, version);
        laid.newest = Math.max(laid.newest, version);
      }
    }
    laid.workers.push({ worker, row: laid.rows, rows: free.length });
    laid.rows += free.length;
  }
  if (!laid.placed.length) Object.assign(laid, { from: 0, to: 1 });
  if (laid.oldest > laid.newest) Object.assign(laid, { oldest: 0, newest: 0 });
  return laid;
}
