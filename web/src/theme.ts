// Dark or light: the system's, or what was chosen here, which localStorage keeps.
import { signal } from '@preact/signals';

export type Theme = 'system' | 'dark' | 'light';
const KEY = 'etude-theme';

export const theme = signal<Theme>('system');
/** Counts changes of what is drawn with: canvases draw anew. */
export const painted = signal(0);

export function setTheme(value: Theme): void {
  theme.value = value;
  if (value === 'system') {
    document.documentElement.removeAttribute('data-theme');
    localStorage.removeItem(KEY);
  } else {
    document.documentElement.setAttribute('data-theme', value);
    localStorage.setItem(KEY, value);
  }
  painted.value += 1;
}

export function startTheme(): void {
  const kept = localStorage.getItem(KEY);
  setTheme(kept === 'dark' || kept === 'light' ? kept : 'system');
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => (painted.value += 1));
}

export const dark = () =>
  theme.value === 'dark' || (theme.value === 'system' && matchMedia('(prefers-color-scheme: dark)').matches);

/** A colour of the design, for what is drawn on a canvas. */
export const colour = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
