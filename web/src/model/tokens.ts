// How tokens are coloured. Owns the ways of looking at them, what each needs, and its scale.
import type { TokenColumns } from '../api/types';
import { figure, version } from '../format';
import { heat, ofVersion, twoSided } from './colours';

export type Way = 'logprob' | 'version' | 'advantage' | 'entropy' | 'difference' | 'mask';

export interface Look {
  label: string;
  /** What the colour says, from one end to the other. */
  legend: (scale: Scale) => [colour: string, said: string][];
  has: (tokens: TokenColumns) => boolean;
  /** Of one token; null leaves it plain. */
  colour: (tokens: TokenColumns, at: number, scale: Scale) => string | null;
}

export interface Scale {
  oldest: number;
  newest: number;
  /** The largest size of an advantage. */
  advantage: number;
}

const LOGPROB = 5;
const ENTROPY = 2;
const DIFFERENCE = 0.2;
const PURPLE: [number, number, number] = [132, 82, 214];

export const difference = (tokens: TokenColumns, at: number): number | null => {
  const [ours, sampler] = [tokens.trainer_logprob?.[at], tokens.logprob[at]];
  return ours === null || ours === undefined || sampler === null || sampler === undefined ? null : ours - sampler;
};

const number = (value: number | null | undefined): value is number => value !== null && value !== undefined;

export const WAYS: Record<Way, Look> = {
  logprob: {
    label: 'Log-probability',
    legend: () => [[heat(0), 'certain (0)'], [heat(0.5), `${figure(-LOGPROB / 2)}`], [heat(1), `${figure(-LOGPROB)} and less`]],
    has: (tokens) => tokens.sampled.some(Boolean),
    colour: (tokens, at) => {
      const value = tokens.logprob[at];
      return number(value) ? heat(-value / LOGPROB) : null;
    },
  },
  version: {
    label: 'Version',
    legend: ({ oldest, newest }) =>
      newest - oldest < 8
        ? Array.from({ length: newest - oldest + 1 }, (_, at) => [ofVersion(oldest + at, oldest, newest, 0.5), version(oldest + at)])
        : [[ofVersion(oldest, oldest, newest, 0.5), `v${oldest}`], [ofVersion(newest, oldest, newest, 0.5), `v${newest}`]],
    has: (tokens) => tokens.sampled.some(Boolean),
    colour: (tokens, at, { oldest, newest }) => {
      const value = tokens.version[at];
      return number(value) ? ofVersion(value, oldest, newest, 0.5) : null;
    },
  },
  advantage: {
    label: 'Advantage',
    legend: ({ advantage }) => [[twoSided(-1), figure(-advantage)], [twoSided(0), '0'], [twoSided(1), '+' + figure(advantage)]],
    has: (tokens) => tokens.advantage !== null,
    colour: (tokens, at, { advantage }) => {
      const value = tokens.advantage?.[at];
      return number(value) ? twoSided(value / (advantage || 1)) : null;
    },
  },
  entropy: {
    label: 'Entropy',
    legend: () => [[heat(0, PURPLE), '0'], [heat(0.5, PURPLE), figure(ENTROPY / 2)], [heat(1, PURPLE), `${ENTROPY} nats and more`]],
    has: (tokens) => tokens.entropy !== null,
    colour: (tokens, at) => {
      const value = tokens.entropy?.[at];
      return number(value) ? heat(value / ENTROPY, PURPLE) : null;
    },
  },
  difference: {
    label: 'Trainer less sampler',
    legend: () => [[twoSided(-1), `${figure(-DIFFERENCE)} and less`], [twoSided(0), 'equal'], [twoSided(1), `+${DIFFERENCE} and more`]],
    has: (tokens) => tokens.trainer_logprob !== null,
    colour: (tokens, at) => {
      const value = difference(tokens, at);
      return value === null ? null : twoSided(value / DIFFERENCE);
    },
  },
  mask: {
    label: 'Trained on',
    legend: () => [[heat(0.6, [40, 160, 90]), 'trained on'], [heat(0.6), 'sampled, left out'], [heat(0), 'not sampled']],
    has: (tokens) => tokens.mask !== null,
    colour: (tokens, at) => {
      if (!tokens.sampled[at]) return null;
      return tokens.mask?.[at] === 'trained' ? heat(0.6, [40, 160, 90]) : heat(0.6);
    },
  },
};

/** The scale that loaded pieces ask for. */
export function scaleOf(pieces: Iterable<TokenColumns>, oldest: number | null, newest: number | null): Scale {
  let advantage = 0;
  for (const piece of pieces) for (const value of piece.advantage ?? []) advantage = Math.max(advantage, Math.abs(value ?? 0));
  return { oldest: oldest ?? 0, newest: newest ?? oldest ?? 0, advantage };
}
