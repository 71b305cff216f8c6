// Where the pages begin: appearance, the way in, the frame, and the page that the address names.
import { render } from 'preact';
import { pressed } from './keys';
import { listen } from './router';
import { enter } from './session';
import { Shell } from './Shell';
import { startTheme } from './theme';

startTheme();
window.addEventListener('keydown', pressed);
await enter();
listen(enter);
render(<Shell />, document.getElementById('app')!);
