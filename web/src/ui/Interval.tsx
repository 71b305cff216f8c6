// A rate, or a difference of rates, with how sure it is.
import { percent } from '../format';

interface Props {
  low: number;
  high: number;
  at: number;
  from: number;
  to: number;
  wide?: number;
}

/** A mean with its interval, drawn from `from` to `to`. */
export function Interval({ low, high, at, from, to: until, wide = 150 }: Props) {
  const x = (value: number) => 6 + ((wide - 12) * (value - from)) / (until - from);
  const said = `${percent(low, 1)} to ${percent(high, 1)}`;
  return (
    <span class="row nowrap">
      <svg width={wide} height="16" role="img" aria-label={said}>
        <line x1="6" x2={wide - 6} y1="8" y2="8" stroke="var(--line)" />
        {from < 0 && <line x1={x(0)} x2={x(0)} y1="1" y2="15" stroke="var(--line-strong)" />}
        <line x1={x(low)} x2={x(high)} y1="8" y2="8" stroke="var(--accent)" stroke-width="3" stroke-linecap="round" />
        <circle cx={x(at)} cy="8" r="4.5" fill="var(--accent)" />
      </svg>
      <span class="muted small">{said}</span>
    </span>
  );
}
