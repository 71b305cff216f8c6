// The answers that a report holds: one file that is opened from disk asks no server. Owns how an address becomes the name of an
// answer; `etude/studio/report.py` names them alike.

const element = typeof document === 'undefined' ? null : document.getElementById('answers');
const answers: Record<string, unknown> | null = element ? (JSON.parse(element.textContent ?? '{}') as Record<string, unknown>) : null;

/** Whether this is a report. */
export const isReport = answers !== null;
/** Of these a report has one answer, whatever is asked for in them. */
const WHOLE = /\/(curves|versions|trajectories)$/;

export function nameOf(path: string): string {
  const [place = '', query = ''] = path.split('?', 2) as [string, string?];
  if (WHOLE.test(place)) return place;
  const given = [...new URLSearchParams(query)].filter(([name]) => name !== 'turns').sort(([a], [b]) => (a < b ? -1 : 1));
  return [place, ...given.map(([name, value]) => `${name}=${value}`)].join(' ');
}

/** Null where the report does not have it. */
export const kept = (path: string): unknown => answers?.[nameOf(path)] ?? null;
