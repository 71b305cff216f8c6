// Columns for a chart. Owns how series with buckets of their own are put on one axis, and how a step that has just been
// made is added without asking for all of them again.
import type { Series } from '../api/types';

export type Column = (number | null)[];

/** One axis for all: the union of their places. Of each series three columns: least, most and last of each bucket. */
export function aligned(all: Series[]): { x: number[]; columns: Column[] } {
  const x = [...new Set(all.flatMap((each) => each.x))].sort((a, b) => a - b);
  const index = new Map(x.map((value, at) => [value, at]));
  const columns: Column[] = [];
  for (const each of all) {
    const three: Column[] = [0, 1, 2].map(() => new Array<number | null>(x.length).fill(null));
    each.x.forEach((value, at) => {
      const to = index.get(value)!;
      three[0]![to] = each.min[at] ?? null;
      three[1]![to] = each.max[at] ?? null;
      three[2]![to] = each.last[at] ?? null;
    });
    columns.push(...three);
  }
  return { x, columns };
}

/** A mean of what came before, which forgets: as TensorBoard smooths, without its pull towards 0 at the beginning. */
export function smoothed(column: Column, weight: number): Column {
  let [sum, mass] = [0, 0];
  return column.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    mass = weight * mass + (1 - weight);
    return sum / mass;
  });
}

/** What is left when the steps after one are taken back: a run that was killed makes them again. */
export function cut(series: Series, after: number): Series {
  const keep = series.x.findLastIndex((x) => x <= after) + 1;
  const { x, min, max, last } = series;
  return { x: x.slice(0, keep), min: min.slice(0, keep), max: max.slice(0, keep), last: last.slice(0, keep) };
}

/** A series with one more point; a step told twice changes nothing. */
export function added(series: Series, x: number, value: number | null): Series {
  const last = series.x.at(-1);
  if (value === null || (last !== undefined && x <= last)) return series;
  return { x: [...series.x, x], min: [...series.min, value], max: [...series.max, value], last: [...series.last, value] };
}

/** Figures of a step's line by their names; a figure in a table (`parts`) is `parts.tests`. */
export function figuresOf(line: Record<string, unknown>, before = ''): Record<string, number> {
  const found: Record<string, number> = {};
  for (const [name, value] of Object.entries(line)) {
    if (typeof value === 'number') found[before + name] = value;
    else if (typeof value === 'boolean') found[before + name] = Number(value);
    else if (value && typeof value === 'object' && !Array.isArray(value)) {
      Object.assign(found, figuresOf(value as Record<string, unknown>, `${before}${name}.`));
    }
  }
  return found;
}

/** The part of all figures that a run's page begins with, in this order, as far as the run has them. */
export const FIRST = ['reward', 'solve_rate', 'dev_pass1', 'sampled_tokens', 'turns', 'mean_age', 'max_age', 'entropy', 'loss', 'grad_norm', 'max_abs_dlogp', 'mismatch_k3', 'masked_share', 'step_wall_s'];

const LABELS: Record<string, string> = {
  reward: 'Reward', solve_rate: 'Solve rate', dev_pass1: 'Development tasks solved', sampled_tokens: 'Sampled tokens a rollout', turns: 'Turns a rollout',
  mean_age: 'Age of tokens, mean (versions)', max_age: 'Age of tokens, most (versions)', entropy: 'Entropy (nats)', loss: 'Loss',
  grad_norm: 'Gradient norm', max_abs_dlogp: 'Trainer\u2013sampler difference, most', mismatch_k3: 'KL to the sampler (k3)',
  masked_share: 'Share of tokens masked',
  step_wall_s: 'Seconds a step', step_s: 'Seconds a step', trained_rollouts: 'Rollouts trained on', trained_tokens: 'Tokens trained on',
};
/** A figure's name in words, or as the run has it. */
export const labelOf = (name: string) => LABELS[name] ?? name;
