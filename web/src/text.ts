// Makes visible what text may hold and a page would hide or obey: control characters, marks that turn the direction
// of writing, characters without a width, halves of surrogate pairs. Owns no markup: callers put the pieces into text nodes.

/** Newline and tab stay as they are: where text is shown as written they do what they say. */
const HIDDEN =
  // eslint-disable-next-line no-control-regex
  /(?:[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]|\udb40[\udc00-\uddff]|\r(?!\n))+/g;

const NAMES: Record<number, string> = {
  0xad: 'SHY', 0x200b: 'ZWSP', 0x200c: 'ZWNJ', 0x200d: 'ZWJ', 0x200e: 'LRM', 0x200f: 'RLM', 0x2028: 'LSEP', 0x2029: 'PSEP',
  0x202a: 'LRE', 0x202b: 'RLE', 0x202c: 'PDF', 0x202d: 'LRO', 0x202e: 'RLO', 0x2060: 'WJ', 0x2066: 'LRI', 0x2067: 'RLI',
  0x2068: 'FSI', 0x2069: 'PDI', 0x61c: 'ALM', 0xfeff: 'BOM',
};

export interface Piece {
  text: string;
  /** What stands for it, where it is of characters that would not be seen. */
  hidden: string | null;
}

/** What stands for a hidden character: a control picture, or its name in brackets. */
export function shownAs(code: number): string {
  if (code < 0x20) return String.fromCharCode(0x2400 + code);
  if (code === 0x7f) return '\u2421';
  return `\u2039${NAMES[code] ?? 'U+' + code.toString(16).toUpperCase().padStart(4, '0')}\u203a`;
}

/** Hidden characters by their numbers. */
export function codes(hidden: string): string {
  const found = Array.from(hidden.slice(0, 16), (each) => 'U+' + each.codePointAt(0)!.toString(16).toUpperCase().padStart(4, '0'));
  return `${found.length > 1 ? 'characters' : 'character'} ${found.join(' ')}${hidden.length > 16 ? ' \u2026' : ''}`;
}

/** The text in pieces, in order; joined they are the text. Hidden characters side by side are one: of a megabyte of them a page
 *  would be a million elements. `\r` right before `\n` is part of the newline. */
export function pieces(text: string): Piece[] {
  if (text.search(HIDDEN) < 0) return text ? [{ text, hidden: null }] : [];
  const found: Piece[] = [];
  let from = 0;
  for (const match of text.matchAll(HIDDEN)) {
    const at = match.index;
    if (at > from) found.push({ text: text.slice(from, at), hidden: null });
    found.push({ text: match[0], hidden: Array.from(match[0], (each) => shownAs(each.codePointAt(0)!)).join('') });
    from = at + match[0].length;
  }
  if (from < text.length) found.push({ text: text.slice(from), hidden: null });
  return found;
}

/** A long name with its beginning and its end, which tells it from others: the middle is left out. */
export function middle(text: string, most: number): string {
  const end = Math.floor(0.45 * most);
  return text.length > most ? `${text.slice(0, most - end - 1)}\u2026${text.slice(text.length - end)}` : text;
}

/** On one line, for titles and lists: newlines and tabs too are shown as pictures. */
export function oneLine(text: string, most = 400): string {
  const short = text.length > most ? text.slice(0, most) + '\u2026' : text;
  return pieces(short)
    .map((each) => each.hidden ?? each.text)
    .join('')
    .replace(/\r?\n/g, '\u240a')
    .replace(/\t/g, '\u2409');
}
