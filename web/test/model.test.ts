// What the pages compute before they draw: filters, series, lanes, colours, heights, events of the stream, figures as text.
import { describe, expect, it } from 'vitest';
import { part, query } from '../src/api/client';
import { bytes, figure, seconds, tick, versions, whole } from '../src/format';
import { line, linked, ofRange, parse, rangeOf, strange, type FilterQuery } from '../src/model/filter';
import { lay } from '../src/model/lanes';
import { added, aligned, cut, smoothed } from '../src/model/series';
import { after } from '../src/model/runs';
import { idOf, placeOf, to } from '../src/router';
import { backoff, Events } from '../src/stream';
import { Heights } from '../src/ui/virtual';
import type { RunRow } from '../src/api/types';

describe('the filter', () => {
  const said: [string, Record<string, string>][] = [
    ['outcome:cheated tool:grep step:3..5', { outcome: 'cheated', tool: 'grep', step: '3..5' }],
    ['reward:>0.5', { reward: '0.5..' }],
    ['reward:-1..-0.5', { reward: '-1..-0.5' }],
    ['step:7-9 version:<3', { step: '7..9', version: '..3' }],
    ['task:"fix the parser" lost words', { task: 'fix the parser', text: 'lost words' }],
    ['http://x', { text: 'http://x' }],
  ];
  it.each(said)('%s', (words, meant) => expect(parse(words)).toEqual(meant));
  it.each(said)('%s is said as it is read', (_, meant) => expect(parse(line(meant))).toEqual(meant));
  it('tells of words that look like filters and are none', () => {
    expect(strange('rewrd:>0.5 reward:1 http://x lost a:b "c:d"')).toEqual(['rewrd', 'a']);
  });
  it('has ranges with two ends', () => {
    expect(['3', '3..5', '..5', '-0.5..', 'x', '', null].map(rangeOf)).toEqual([[3, 3], [3, 5], [null, 5], [-0.5, null], [null, null], [null, null], [null, null]]);
    expect([ofRange([3, 3]), ofRange([null, 0.1 + 0.2]), ofRange([null, null])]).toEqual(['3', '..0.3', null]);
  });
});

describe('series', () => {
  const series = { x: [1, 2, 3], min: [0, 1, 2], max: [2, 3, 4], last: [1, 2, 3] };
  it('of several runs share one axis', () => {
    const other = { x: [2, 5], min: [7, 8], max: [7, 8], last: [7, 8] };
    const { x, columns } = aligned([series, other]);
    expect(x).toEqual([1, 2, 3, 5]);
    expect(columns[2]).toEqual([1, 2, 3, null]);
    expect(columns[5]).toEqual([null, 7, null, 8]);
  });
  it('grow by a step, and shrink where a killed run takes steps back', () => {
    expect(added(series, 4, 9).last).toEqual([1, 2, 3, 9]);
    expect(added(series, 3, 9)).toBe(series); // told twice
    expect(cut(series, 1)).toEqual({ x: [1], min: [0], max: [2], last: [1] });
    expect(cut(series, 0).x).toEqual([]);
  });
});

describe('smoothing', () => {
  it('leaves what is flat as it is, from its first point on, and passes over what is missing', () => {
    expect(smoothed([3, 3, null, 3], 0.9).map((each) => each && Math.round(1e9 * each) / 1e9)).toEqual([3, 3, null, 3]);
    expect(smoothed([0, 1], 0.5)[1]).toBeCloseTo(2 / 3); // (0.25 * 0 + 0.5 * 1) / 0.75
    expect(smoothed([1, 2, 5], 0)).toEqual([1, 2, 5]);
  });
});

describe('lanes', () => {
  const rollout = (id: string, begun_at: number, ended_at: number, version = 1) =>
    ({ id, begun_at, ended_at, outcome: 'scored', reward: 1, spans: [[begun_at, ended_at, version]] }) as never;
  it('put what overlaps beside each other and what follows into the same row', () => {
    const laid = lay([{ worker: 'a', rollouts: [rollout('1', 0, 5), rollout('2', 3, 6, 4), rollout('3', 5, 9)] }, { worker: 'b', rollouts: [rollout('4', 1, 2)] }]);
    expect(laid.placed.map((each) => [each.rollout.id, each.row])).toEqual([['1', 0], ['2', 1], ['3', 0], ['4', 2]]);
    expect([laid.rows, laid.from, laid.to, laid.oldest, laid.newest]).toEqual([3, 0, 9, 1, 4]);
  });
  it('are drawn of nothing as well', () => expect(lay([])).toMatchObject({ rows: 0, from: 0, to: 1, oldest: 0, newest: 0 }));
});

describe('heights', () => {
  it('find the entry at a place, guessed and measured, as adding them up does', () => {
    const heights = new Heights(1000, 20);
    const each = new Array<number>(1000).fill(20);
    for (const [index, height] of [[3, 55], [0, 7], [999, 300], [500, 1]] as const) {
      expect(heights.set(index, height)).toBe(true);
      each[index] = height;
    }
    expect(heights.set(3, 55)).toBe(false);
    let top = 0;
    each.forEach((height, index) => {
      expect(heights.top(index)).toBe(top);
      expect(heights.at(top + height / 2)).toBe(index);
      top += height;
    });
    expect(heights.top(1000)).toBe(top);
    expect(heights.at(top + 999)).toBe(999);
  });
  it('keep what was measured when the list grows', () => {
    const short = new Heights(2, 10);
    short.set(1, 30);
    expect(new Heights(4, 10, short).top(4)).toBe(60);
  });
  it('of an empty list', () => expect(new Heights(0, 20).at(0)).toBe(0));
});

describe('the stream', () => {
  const text = 'retry: 1000\n\nevent: runs\nid: 7\ndata: {"a":1}\n\n: beat\n\nevent: run/x/live\r\nid: 8\r\ndata: {"b":\r\ndata: 2}\r\n\r\nevent: half\ndata: 1';
  it('is read however it is cut', () => {
    for (let size = 1; size < text.length; size++) {
      const events = new Events();
      const told = [];
      for (let at = 0; at < text.length; at += size) told.push(...events.feed(text.slice(at, at + size)));
      expect(told).toEqual([{ event: 'runs', id: '7', data: '{"a":1}' }, { event: 'run/x/live', id: '8', data: '{"b":\n2}' }]);
    }
  });
  it('comes back later each time, and never later than after fifteen seconds', () => {
    expect(backoff(0, 1)).toBeCloseTo(0.4);
    expect(backoff(3, 1)).toBeCloseTo(3.2);
    expect(backoff(50, 1)).toBe(15);
    expect(backoff(50, 0)).toBe(7.5);
  });
  it('tells the list of runs whole or in parts', () => {
    const run = (id: string, updated_at: number) => ({ id, updated_at }) as RunRow;
    const both = after([], { runs: [run('a', 2), run('b', 1)] });
    expect(after(both, { changed: [run('b', 5), run('c', 3)], gone: ['a'] }).map((each) => each.id)).toEqual(['b', 'c']);
    expect(after(both, {}).map((each) => each.id)).toEqual(['a', 'b']);
  });
});

describe('addresses', () => {
  it('hold ids and queries, and are read as they were written', () => {
    const address = to(['run', 'a b?#', 'trajectory', 'g1/2'], { tab: 'tokens', none: null });
    expect(address).toBe('#/run/a%20b%3F%23/trajectory/g1~2?tab=tokens');
    const { parts, query: found } = placeOf(address);
    expect(parts.map(idOf)).toEqual(['run', 'a b?#', 'trajectory', 'g1/2']);
    expect(found.get('tab')).toBe('tokens');
    expect(placeOf('#/run/%zz').parts).toEqual(['run', '%zz']);
    expect(placeOf('').parts).toEqual(['runs']);
  });
  it('of the server leave out what is not given', () => {
    expect(query({ a: 1, b: null, c: '', d: false })).toBe('?a=1&d=false');
    expect(query({})).toBe('');
    expect(part('g12/3')).toBe('g12~3');
  });
});

it('figures say enough and no more', () => {
  expect([0.5, -0.25, 12, 1234.5, 12345, 0.00001, null, -0.0000123, 1e9].map(figure)).toEqual(['0.500', '\u22120.250', '12', '1235', '12\u202f345', '1.00e\u22125', '\u2013', '\u22121.23e\u22125', '1.00e9']);
  expect([0.6, 1.5, 0, -0.0007].map(tick)).toEqual(['0.6', '1.5', '0', '\u22127e\u22124']);
  expect([999, 1500, 999_600, 2_345_678].map(bytes)).toEqual(['999 B', '1.5 kB', '1.0 MB', '2.3 MB']);
  expect([0.05, 2.25, 59, 61, 3700, null].map(seconds)).toEqual(['50 ms', '2.3 s', '59 s', '1 min 1 s', '1 h 1 min', '\u2013']);
  expect([versions(3, 3), versions(1, 4), versions(null, null), whole(-12345)]).toEqual(['v3', 'v1\u20134', '\u2013', '\u221212\u202f345']);
  expect(versions(1_000_000, 1_000_000)).toBe('control');
});

it('finds the rows of a report that a link names', () => {
  const row = { task_id: 't', step: 4, oldest_version: 1, newest_version: 3 };
  const none = { ...row, step: null, oldest_version: null, newest_version: null };
  const held: FilterQuery[] = [{}, { task: 't' }, { step: '4' }, { version: '2' }, { version: '3..' }];
  const others: FilterQuery[] = [{ task: 'u' }, { step: '5' }, { version: '4' }, { task: 't', step: '3' }];
  expect(held.map((each) => linked(row, each))).toEqual([true, true, true, true, true]);
  expect(others.map((each) => linked(row, each))).toEqual([false, false, false, false]);
  expect([linked(none, { step: '1' }), linked(none, { version: '..3' }), linked(none, {})]).toEqual([false, false, true]);
});
