// One figure over the steps of one run or of several. Owns the drawing (uPlot) and what it says in words; the buckets are
// the server's, so the band between least and most hides nothing. Several charts move one cursor.
import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import { useEffect, useRef, useState } from 'preact/hooks';
import type { Series } from '../api/types';
import { figure, NONE, tick } from '../format';
import { aligned, smoothed } from '../model/series';
import { colour, painted } from '../theme';

export interface Line {
  name: string;
  colour: string;
  series: Series;
}

export interface ChartProps {
  title: string;
  lines: Line[];
  height?: number;
  /** How much of each point is of those before; what was measured is drawn faintly beside. */
  smooth?: number;
  zoom?: (from: number | null, to: number | null) => void;
}

export function Chart({ title, lines, height = 150, smooth = 0, zoom }: ChartProps) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [under, setUnder] = useState<number | null>(null);
  const data = aligned(lines.map((each) => each.series));
  const drawn = smooth ? data.columns.map((each, at) => (at % 3 === 2 ? smoothed(each, smooth) : each)) : data.columns;
  const shape = `${lines.map((each) => each.name + each.colour).join()}|${painted.value}|${height}|${smooth}`;

  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const made = new uPlot(options(lines, element.clientWidth, { height, zoom, smooth }, setUnder), [data.x, ...drawn], element);
    plot.current = made;
    const sizes = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height }));
    sizes.observe(element);
    return () => {
      sizes.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape]);

  useEffect(() => {
    plot.current?.setData([data.x, ...drawn]);
  }, [JSON.stringify(lines.map((each) => [each.series.x.length, each.series.x.at(-1), each.series.x[0], each.series.last.at(-1)]))]);

  const at = under !== null && under < data.x.length ? under : null;
  return (
    <figure class="chart">
      <figcaption>
        <span class="clip" title={title}>
          {title}
        </span>
        <span class="now num">
          {at !== null && <span class="muted">step {data.x[at]}</span>}
          {lines.map((each, index) => (
            <span key={each.name} title={each.name} class="value">
              {lines.length > 1 && <i style={{ background: each.colour }} />}
              {figure(at === null ? each.series.last.at(-1) : data.columns[3 * index + 2]?.[at])}
            </span>
          ))}
        </span>
      </figcaption>
      <div ref={box} role="img" aria-label={words(title, lines)} />
    </figure>
  );
}

/** What the drawing shows, for those who do not see it. */
function words(title: string, lines: Line[]): string {
  const said = lines.map(({ name, series }) => {
    const low = least(series.min, Math.min);
    const high = least(series.max, Math.max);
    if (low === null) return `${name}: nothing yet`;
    return `${name}: last ${figure(series.last.at(-1))}, from ${figure(low)} to ${high === null ? NONE : figure(high)}, steps ${series.x[0]} to ${series.x.at(-1)}`;
  });
  return `${title}. ${said.join('; ')}`;
}

const least = (values: (number | null)[], of: (a: number, b: number) => number) =>
  values.reduce<number | null>((best, value) => (value === null ? best : best === null ? value : of(best, value)), null);

function options(
  lines: Line[], width: number, { height, zoom, smooth }: Pick<ChartProps, 'zoom'> & { height: number; smooth: number },
  under: (at: number | null) => void,
): uPlot.Options {
  const axis: uPlot.Axis = {
    stroke: colour('muted'),
    font: '11px system-ui, sans-serif',
    grid: { stroke: colour('line'), width: 1 },
    ticks: { show: false },
  };
  return {
    width: Math.max(120, width),
    height,
    padding: [6, 8, 0, 0],
    legend: { show: false },
    scales: { x: { time: false }, y: { range: (_, low, high) => spread(low, high) } },
    axes: [
      { ...axis, size: 18, gap: 2, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 50000] },
      { ...axis, size: 46, gap: 4, space: 28, values: (_, ticks) => ticks.map(tick) },
    ],
    series: [{}, ...lines.flatMap((line) => three(line, smooth > 0))],
    bands: lines.map((line, at) => ({ series: [3 * at + 2, 3 * at + 1], fill: line.colour + '2e' }) as uPlot.Band),
    cursor: {
      sync: { key: 'steps', setSeries: false },
      drag: { x: zoom !== undefined, y: false, setScale: false },
      points: { size: 6 },
    },
    hooks: {
      setCursor: [(self) => under(self.cursor.idx ?? null)],
      setSelect: [
        (self) => {
          if (!zoom || self.select.width < 4) return;
          zoom(Math.ceil(self.posToVal(self.select.left, 'x')), Math.floor(self.posToVal(self.select.left + self.select.width, 'x')));
          self.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        },
      ],
      ready: [(self) => self.over.addEventListener('dblclick', () => zoom?.(null, null))],
    },
  };
}

function three(line: Line, faint: boolean): uPlot.Series[] {
  const points = { show: line.series.x.length < 3 };
  const edge: uPlot.Series = { stroke: faint ? line.colour + '50' : 'transparent', width: faint ? 1 : 0, points: { show: false }, spanGaps: true };
  return [edge, edge, { stroke: line.colour, width: 1.5, points, spanGaps: true }];
}

/** Ends of the axis: some room above and below, and some for a line that is flat. */
function spread(low: number | null, high: number | null): [number, number] {
  if (low === null || high === null) return [0, 1];
  if (low === high) return low === 0 ? [-0.05, 1] : [low - 0.1 * Math.abs(low), low + 0.1 * Math.abs(low)];
  const room = 0.08 * (high - low);
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}
