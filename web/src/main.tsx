// Where the pages begin: appearance, the way in, the frame, and the page that the address names.
import { render } from 'preact';
import { pressed } from './keys';
import { listen } from './router';
import { enter } from './session';
import { Shell } from './Shell';
import { startTheme } from './theme';

if (import.meta.env.REPORT) await import('./style/base.css');
startTheme();
window.addEventListener('keydown', pressed);
await enter();
listen(enter);
render(<Shell />, document.getElementById('app')!);
