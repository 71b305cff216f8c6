// Where the pages begin: appearance, the way in, the frame, and the page that the address names.
import { render } from 'preact';
import { isReport, kept } from './api/kept';
import type { RunList } from './api/types';
import { pressed } from './keys';
import { listen, to } from './router';
import { enter } from './session';
import { Shell } from './Shell';
import { startTheme } from './theme';

if (import.meta.env.REPORT) await import('./style/base.css');
if (isReport && !location.hash) location.replace(to(['run', (kept('runs') as RunList).runs[0]!.id])); // it is of one run
startTheme();
window.addEventListener('keydown', pressed);
await enter();
listen(enter);
render(<Shell />, document.getElementById('app')!);
