// The controls of `View`: which steps are shown, and how smooth the lines are.
import { refine } from '../router';
import { SMOOTH, type View } from './view';

export function ViewBar({ view: { from, to, smooth, zoom }, x }: { view: View; x: number[] }) {
  const written = (event: { currentTarget: HTMLInputElement }) => (event.currentTarget.value === '' ? null : event.currentTarget.valueAsNumber);
  return (
    <div class="row">
      <label class="row small">
        <span class="muted">Steps</span>
        <input class="field narrow" type="number" aria-label="From step" placeholder={String(x[0] ?? '')} value={from ?? ''} onChange={(event) => zoom(written(event), to)} />
        <span class="muted">to</span>
        <input class="field narrow" type="number" aria-label="To step" placeholder={String(x[1] ?? '')} value={to ?? ''} onChange={(event) => zoom(from, written(event))} />
      </label>
      {(from !== null || to !== null) && (
        <button class="btn" onClick={() => zoom(null, null)}>
          All steps
        </button>
      )}
      <label class="row small">
        <span class="muted">Smooth</span>
        <select class="field" value={smooth} onChange={(event) => refine({ smooth: Number(event.currentTarget.value) || null })}>
          {[...new Set([...SMOOTH, smooth])].map((each) => (
            <option key={each} value={each}>
              {each || 'no'}
            </option>
          ))}
        </select>
      </label>
      <span class="muted small">Drag over a chart to look closer. The band runs from the least to the most of each bucket.</span>
    </div>
  );
}
