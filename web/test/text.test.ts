// What a page would hide or obey is shown, and nothing of a text is lost.
import { describe, expect, it } from 'vitest';
import { middle, oneLine, pieces } from '../src/text';

const seen = (text: string) => pieces(text).map((each) => each.hidden ?? each.text).join('');

describe('pieces', () => {
  it('are the text again when joined, whatever it holds', () => {
    const hostile = 'a\u202eb\u0000\u001b[31m\r\n\tx\rz\ud800y\udc00 \u{1f600}\u{e0041}\ufeff<script>';
    expect(pieces(hostile).map((each) => each.text).join('')).toBe(hostile);
  });
  it('show controls as pictures and marks by name', () => {
    expect(seen('\u001b[31m')).toBe('\u241b[31m');
    expect(seen('user\u202etxt.exe')).toBe('user\u2039RLO\u203atxt.exe');
    expect(seen('a\u200bb\u2066c\u0085')).toBe('a\u2039ZWSP\u203ab\u2039LRI\u203ac\u2039U+0085\u203a');
    expect(seen('\ud83d')).toBe('\u2039U+D83D\u203a');
  });
  it('are few, however many hidden characters stand side by side', () => {
    expect(pieces('a' + '\u001b\u202e'.repeat(50_000) + '\r\n').length).toBe(3);
  });
  it('leave what can be seen as it is', () => {
    for (const plain of ['', 'plain', 'two\nlines\r\nand\ttab', 'שלום العربية 日本 \u{1f600}']) {
      expect(pieces(plain).every((each) => each.hidden === null)).toBe(true);
      expect(seen(plain)).toBe(plain);
    }
    expect(seen('a\rb')).toBe('a\u240db'); // a return alone writes over the line in a terminal
  });
});

it('a name stays on one line and is cut', () => {
  expect(oneLine('a\nb\tc\u0007')).toBe('a\u240ab\u2409c\u2407');
  expect(oneLine('x'.repeat(500), 10)).toBe('xxxxxxxxxx\u2026');
});

describe('a long name', () => {
  it('keeps its beginning and its end, within the length that there is room for', () => {
    expect(middle('quickstart', 20)).toBe('quickstart');
    expect(middle('a-run-with-a-long-name-seed-7', 20)).toBe('a-run-with\u2026me-seed-7');
    expect(middle('x'.repeat(100), 20)).toHaveLength(20);
  });
});
