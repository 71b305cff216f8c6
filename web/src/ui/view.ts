// How curves are looked at: which steps, and how smooth. Owns that it stands in the address, so that it can be sent to others.
import { useMemo } from 'preact/hooks';
import { useKeys } from '../keys';
import { place, refine } from '../router';

/** Weights of what came before, as TensorBoard has them. */
export const SMOOTH = [0, 0.6, 0.9, 0.97];

export interface View {
  from: number | null;
  to: number | null;
  smooth: number;
  zoom: (from: number | null, to: number | null) => void;
}

export function useView(): View {
  const query = place.value.query;
  const [from, to, smooth] = ['from', 'to', 'smooth'].map((name) => {
    const given = query.get(name);
    return given === null || Number.isNaN(Number(given)) ? null : Number(given);
  });
  const zoom = (from: number | null, to: number | null) => refine({ from, to });
  useKeys([{ keys: '0', does: 'Show all steps', run: () => zoom(null, null) }], []);
  return useMemo(() => ({ from: from!, to: to!, smooth: Math.max(0, Math.min(0.999, smooth ?? 0)), zoom }), [from, to, smooth]);
}
