// Colours that mean an amount or an order. Owns the ramps; each works on a dark and a light ground.

type Rgb = [number, number, number];
const ORDER: Rgb[] = [[86, 98, 214], [42, 140, 200], [40, 168, 140], [140, 178, 58], [224, 164, 44], [222, 100, 62]];
const RUNS = ['#3b6fe0', '#d9822b', '#2a9d78', '#c2478f', '#8560d6', '#b0892e', '#2b9ab8', '#cc5147'];

/** From old (0, blue) to new (1, orange). */
export function ramp(share: number, alpha = 1): string {
  const at = Math.max(0, Math.min(1, share)) * (ORDER.length - 1);
  const low = ORDER[Math.floor(at)]!;
  const high = ORDER[Math.ceil(at)]!;
  const part = at - Math.floor(at);
  const mix = low.map((value, channel) => Math.round(value + part * (high[channel]! - value)));
  return `rgb(${mix.join(' ')} / ${alpha})`;
}

/** Of a version among those from `oldest` to `newest`. */
export const ofVersion = (version: number, oldest: number, newest: number, alpha = 1) =>
  ramp(newest > oldest ? (version - oldest) / (newest - oldest) : 0.1, alpha);

/** Nothing at 0, full at 1. */
export const heat = (share: number, [r, g, b]: Rgb = [214, 60, 50]) =>
  `rgb(${r} ${g} ${b} / ${(0.62 * Math.max(0, Math.min(1, share))).toFixed(3)})`;

/** Red below 0, green above. */
export const twoSided = (share: number) => heat(Math.abs(share), share < 0 ? [214, 60, 50] : [40, 160, 90]);

/** The colour of the n-th run that is laid over others. */
export const ofRun = (index: number) => RUNS[index % RUNS.length]!;
