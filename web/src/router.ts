// Where the tab is, as a path and a query behind the `#`: every view has an address that can be sent to others. Owns the
// table of pages; a page's code is loaded when somebody first goes there.
import { computed, signal } from '@preact/signals';

export interface Place {
  /** Parts of the path, decoded. */
  parts: string[];
  query: URLSearchParams;
}

export function placeOf(hash: string): Place {
  const [path = '', query = ''] = split(hash.replace(/^#/, ''));
  const parts = path.split('/').filter(Boolean).map(decoded);
  return { parts: parts.length ? parts : ['runs'], query: new URLSearchParams(query) };
}

function split(text: string): [string, string] {
  const at = text.indexOf('?');
  return at < 0 ? [text, ''] : [text.slice(0, at), text.slice(at + 1)];
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // a stray %
  }
}

/** An address of ours; parts are escaped, ids keep their `/` as `~`. */
export function to(parts: (string | number)[], query: Record<string, string | number | null | undefined> = {}): string {
  const path = parts.map((each) => encodeURIComponent(String(each).replaceAll('/', '~'))).join('/');
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== '');
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return `#/${path}${text ? '?' + text : ''}`;
}

/** What `to` made of an id. */
export const idOf = (part: string) => part.replaceAll('~', '/');

export const hash = signal(typeof location === 'undefined' ? '' : location.hash);
export const place = computed(() => placeOf(hash.value));

export function go(address: string): void {
  location.hash = address;
}

/** The same place with another query; it makes no entry in the history. */
export function refine(query: Record<string, string | number | null | undefined>): void {
  const now = new URLSearchParams(place.value.query);
  for (const [name, value] of Object.entries(query)) {
    if (value === null || value === undefined || value === '') now.delete(name);
    else now.set(name, String(value));
  }
  const path = hash.value.replace(/^#/, '').split('?')[0] || '/runs';
  const text = now.toString();
  history.replaceState(null, '', `#${path}${text ? '?' + text : ''}`);
  hash.value = location.hash;
}

/** `entering` is told when the address has become one that lets in, in a tab that is open already. */
export function listen(entering: () => Promise<void>): void {
  const read = () => {
    hash.value = location.hash;
  };
  window.addEventListener('hashchange', () => {
    if (location.hash.startsWith('#code=')) void entering().then(read);
    else read();
  });
  read();
}
