// A session's picture, from its log and from what is in no log yet.
import { describe, expect, it } from 'vitest';
import { besides, logged, NOTHING, pictured, type LogLine } from '../src/model/dialogue';

const log: LogLine[] = [
  { kind: 'session', at: 0 },
  { kind: 'prompt', at: 1, user: 'Fix it.' },
  { kind: 'completion', at: 2, text: '<think>Hm.</think>I look.<tool_call>\n<function=grep>' },
  { kind: 'tool_call', at: 2, index: 0, name: 'grep', arguments: { pattern: 'x' } },
  { kind: 'tool_call', at: 2, index: 1, name: 'read_file', arguments: { path: 'a' } },
  { kind: 'tool_result', at: 3, index: 1, name: 'read_file', text: 'none', error: true },
  { kind: 'tool_result', at: 4, index: 0, name: 'grep', text: 'found', error: false },
  { kind: 'completion', at: 5, text: 'Done.' },
  { kind: 'end', at: 6, stop: 'out_of_turns' },
];

it('shows turns with their calls, whichever returns first, and no markup of calls', () => {
  expect(pictured(log)).toEqual([
    { kind: 'prompt', text: 'Fix it.', line: 2 },
    {
      kind: 'turn', text: 'I look.', line: 3,
      calls: [
        { name: 'grep', arguments: { pattern: 'x' }, result: 'found', failed: false },
        { name: 'read_file', arguments: { path: 'a' }, result: 'none', failed: true },
      ],
    },
    { kind: 'turn', text: 'Done.', calls: [], line: 8 },
    { kind: 'note', text: 'Ended: out of turns.', line: 9 },
  ]);
});

it('has a picture of every moment', () => {
  expect(pictured([])).toEqual([]);
  for (let at = 0; at < log.length; at++) expect(() => pictured(log.slice(0, at))).not.toThrow();
  const [, turn] = pictured(log.slice(0, 6));
  expect(turn).toMatchObject({ calls: [{ result: null }, { result: 'none' }] });
});

describe('what is in no log', () => {
  it('grows by words, calls and print, and is gone when the log has it', () => {
    let now = besides(NOTHING, 'words', { kind: 'text', text: 'So ' });
    now = besides(now, 'words', { kind: 'reasoning', text: 'not shown' });
    now = besides(now, 'words', { kind: 'text', text: 'far.' });
    now = besides(now, 'call', { index: 0, name: 'grep', arguments: '{"pat' });
    now = besides(now, 'call', { index: 0, name: '', arguments: 'tern"' });
    expect(now.message).toEqual({ text: 'So far.', calls: [{ name: 'grep', arguments: '{"pattern"' }] });
    now = besides(now, 'printed', { index: 1, text: 'x'.repeat(70_000) });
    expect(now.printed['1']).toHaveLength(64_000);
    expect(logged(now, { kind: 'completion' }).message.text).toBe('');
    expect(logged(now, { kind: 'tool_result', index: 1 }).printed).toEqual({});
    expect(besides(now, 'state', { state: 'resting', error: 'lost' })).toMatchObject({ state: 'resting', error: 'lost', printed: {} });
  });
  it('keeps a question until it is answered', () => {
    const asked = besides(NOTHING, 'asked', { request: 'r1', questions: [] });
    expect(besides(asked, 'asked', { request: 'r1', questions: [] }).questions).toHaveLength(1);
    expect(besides(asked, 'answered', { request: 'r1' }).questions).toEqual([]);
  });
});
