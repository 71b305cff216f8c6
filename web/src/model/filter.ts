// The filter of trajectories, as one line of words: `outcome:cheated tool:grep reward:>0.5 step:3..5 recovered`. Owns the line's
// grammar; each word before a colon is a parameter of the server's query, and stands in a page's address under its name.
import type { TrajectoryRow } from '../api/types';

const RANGES = ['step', 'version', 'reward'];
export const WORDS = ['outcome', 'task', 'tool', 'finding', 'group', 'phase', 'dropped', 'trained', 'solved', ...RANGES];
export const NAMES = [...WORDS, 'text'];

export type FilterQuery = Record<string, string>;
export type Range = [from: number | null, to: number | null];

/** A line's meaning. What is no known word is text to look for. */
export function parse(line: string): FilterQuery {
  const query: FilterQuery = {};
  const text: string[] = [];
  for (const match of line.matchAll(/(?:(\w+):)?("([^"]*)"|\S+)/g)) {
    const [whole, name, bare, quoted] = match;
    if (name && WORDS.includes(name)) query[name] = RANGES.includes(name) ? ends(bare ?? '') : (quoted ?? bare ?? '');
    else text.push(whole);
  }
  if (text.length) query.text = text.join(' ');
  return query;
}

/** What looks like a filter in a line, and is none. */
export const strange = (line: string): string[] => [...line.matchAll(/(?:^|\s)([a-z_]+):(?=[^\s/])/g)].flatMap(([, name]) => (WORDS.includes(name!) ? [] : [name!]));

/** As the server has a range: `3`, `3..5`, `..5`, `3..`. */
function ends(value: string): string {
  const signed = /^([<>])=?(.*)$/.exec(value);
  if (signed) return signed[1] === '>' ? `${signed[2]}..` : `..${signed[2]}`;
  return value.includes('..') ? value : value.replace(/^(-?[\d.]+)-(-?[\d.]+)$/, '$1..$2');
}

/** The line that says a query. */
export function line(query: FilterQuery): string {
  const words = WORDS.flatMap((name) => (query[name] ? [`${name}:${/\s/.test(query[name]) ? `"${query[name]}"` : query[name]}`] : []));
  return [...words, ...(query.text ? [query.text] : [])].join(' ');
}

/** The part of an address's query that is a filter. */
export function ofAddress(query: URLSearchParams): FilterQuery {
  return Object.fromEntries(NAMES.flatMap((name) => (query.get(name) ? [[name, query.get(name)!]] : [])));
}

/** Whether a row is among those that links between the pages name: a report has no server to ask. */
export function linked(row: Pick<TrajectoryRow, 'task_id' | 'step' | 'oldest_version' | 'newest_version'>, filter: FilterQuery): boolean {
  const within = (low: number | null, high: number | null, range: string | undefined) => {
    if (!range) return true;
    const [from, to] = rangeOf(range);
    return low !== null && high !== null && (from === null || high >= from) && (to === null || low <= to);
  };
  return (!filter.task || row.task_id === filter.task) && within(row.step, row.step, filter.step) && within(row.oldest_version, row.newest_version, filter.version);
}

/** The two ends of a range as the server has it. */
export function rangeOf(value: string | null | undefined): Range {
  if (!value) return [null, null];
  const [from, to] = value.includes('..') ? (value.split('..', 2) as [string, string]) : [value, value];
  const number = (text: string) => (text === '' || Number.isNaN(Number(text)) ? null : Number(text));
  return [number(from), number(to)];
}

/** The same said; null where it is open on both sides. */
export function ofRange([from, to]: Range): string | null {
  if (from === null && to === null) return null;
  const short = (value: number | null) => (value === null ? '' : String(Number(value.toPrecision(6))));
  return from === to ? short(from) : `${short(from)}..${short(to)}`;
}
