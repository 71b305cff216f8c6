// Figures, lengths of time, sizes and moments as the pages write them. A missing one is a dash.

export const NONE = '\u2013';

/** About four digits that say something. */
export function figure(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return NONE;
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return whole(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return minus(value.toExponential(2).replace('e+', 'e'));
  return minus(size >= 1000 ? value.toFixed(0) : size >= 100 ? value.toFixed(1) : size >= 10 ? value.toFixed(2) : value.toFixed(3));
}

/** For an axis: no more digits than say something. */
export function tick(value: number): string {
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return minus(value.toExponential(1).replace('e+', 'e').replace('.0e', 'e'));
  return minus(String(Number(value.toPrecision(4))));
}

/** With a thin space between thousands. */
export function whole(value: number | null | undefined): string {
  if (value === null || value === undefined) return NONE;
  const digits = Math.abs(Math.round(value)).toString();
  return (value < 0 ? '\u2212' : '') + (digits.length > 4 ? digits.replace(/\B(?=(\d{3})+$)/g, '\u202f') : digits);
}

const minus = (text: string) => text.replaceAll('-', '\u2212');

export function percent(value: number | null | undefined, digits = 0): string {
  return value === null || value === undefined ? NONE : minus((100 * value).toFixed(digits)) + '%';
}

export function signed(value: number | null | undefined): string {
  return value === null || value === undefined ? NONE : (value > 0 ? '+' : '') + figure(value);
}

export function seconds(value: number | null | undefined): string {
  if (value === null || value === undefined) return NONE;
  if (value < 1) return `${Math.round(1000 * value)} ms`;
  if (value < 60) return `${value < 10 ? value.toFixed(1) : Math.round(value)} s`;
  const all = Math.round(value);
  if (all < 3600) return `${Math.floor(all / 60)} min ${all % 60} s`;
  return `${Math.floor(all / 3600)} h ${Math.floor((all % 3600) / 60)} min`;
}

export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined) return NONE;
  if (value < 1000) return `${value} B`;
  const units = ['kB', 'MB', 'GB', 'TB'];
  let size = value / 1000;
  let unit = 0;
  while (size >= 999.5 && unit < units.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${size < 10 ? size.toFixed(1) : Math.round(size)} ${units[unit]}`;
}

/** Unix seconds as a local moment, to the second. */
export function moment(at: number | null | undefined): string {
  if (at === null || at === undefined) return NONE;
  const date = new Date(1000 * at);
  const two = (value: number) => String(value).padStart(2, '0');
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

/** How long ago. */
export function ago(at: number | null | undefined, now = Date.now() / 1000): string {
  if (at === null || at === undefined) return NONE;
  const passed = Math.max(0, now - at);
  if (passed < 60) return 'just now';
  if (passed < 3600) return `${Math.floor(passed / 60)} min ago`;
  if (passed < 86400) return `${Math.floor(passed / 3600)} h ago`;
  const days = Math.floor(passed / 86400);
  return `${days} ${days === 1 ? 'day' : 'days'} ago`;
}

export const plural = (count: number, one: string, many = one + 's') => `${whole(count)} ${count === 1 ? one : many}`;

/** What the fine-tuned control of a run samples with: no version of the chain has its number (rollouts/run.py). */
const CONTROL = 1_000_000;

export const version = (number: number) => (number === CONTROL ? 'control' : `v${number}`);

/** Versions of a trajectory: one, or from the oldest to the newest. */
export function versions(oldest: number | null, newest: number | null): string {
  if (oldest === null || newest === null) return NONE;
  return oldest === newest ? version(oldest) : `v${oldest}\u2013${newest}`;
}
