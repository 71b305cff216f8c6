// The filter of trajectories, as one line of words: `outcome:cheated tool:grep reward:>0.5 step:3-5 recovered`. Owns the line's
// grammar and what it becomes in the server's query; the same names stand in a page's address.

/** What each word before a colon may be called in the query: one value, or two ends of a range. */
const ONE: Record<string, string> = {
  outcome: 'outcome', task: 'task', tool: 'tool', finding: 'finding', group: 'group', trained: 'trained', solved: 'solved',
};
const RANGE: Record<string, [string, string]> = {
  step: ['step_from', 'step_to'], version: ['version_from', 'version_to'], reward: ['reward_from', 'reward_to'],
};
export const NAMES = [...Object.values(ONE), ...Object.values(RANGE).flat(), 'text'];
export const WORDS = [...Object.keys(ONE), ...Object.keys(RANGE)];

export type FilterQuery = Record<string, string>;

/** A line's meaning. What is no known word is text to look for. */
export function parse(line: string): FilterQuery {
  const query: FilterQuery = {};
  const text: string[] = [];
  for (const match of line.matchAll(/(?:(\w+):)?("([^"]*)"|\S+)/g)) {
    const [whole, name, bare, quoted] = match;
    const value = quoted ?? bare ?? '';
    if (name && ONE[name]) query[ONE[name]] = value;
    else if (name && RANGE[name]) ends(value, RANGE[name], query);
    else text.push(whole);
  }
  if (text.length) query.text = text.join(' ');
  return query;
}

function ends(value: string, [low, high]: [string, string], query: FilterQuery): void {
  const range = /^(-?[\d.]+)?\s*(?:\.\.|(?<=\d)-)\s*(-?[\d.]+)?$/.exec(value);
  if (value.startsWith('>')) query[low] = value.replace(/^>=?/, '');
  else if (value.startsWith('<')) query[high] = value.replace(/^<=?/, '');
  else if (range) {
    if (range[1]) query[low] = range[1];
    if (range[2]) query[high] = range[2];
  } else query[low] = query[high] = value;
}

/** The line that says a query. */
export function line(query: FilterQuery): string {
  const quoted = (value: string) => (/\s/.test(value) ? `"${value}"` : value);
  const words: string[] = [];
  for (const [word, name] of Object.entries(ONE)) if (query[name]) words.push(`${word}:${quoted(query[name])}`);
  for (const [word, [low, high]] of Object.entries(RANGE)) {
    const [from, to] = [query[low], query[high]];
    if (from && to) words.push(from === to ? `${word}:${from}` : `${word}:${from}..${to}`);
    else if (from) words.push(`${word}:>${from}`);
    else if (to) words.push(`${word}:<${to}`);
  }
  if (query.text) words.push(query.text);
  return words.join(' ');
}

/** The part of an address's query that is a filter. */
export function ofAddress(query: URLSearchParams): FilterQuery {
  return Object.fromEntries(NAMES.flatMap((name) => (query.get(name) ? [[name, query.get(name)!]] : [])));
}
