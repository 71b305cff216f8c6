// Tabs of one browser at one server: a tab that is in lets in those that are opened from it, or with an address that was kept.
// Owns which tab answers. What passes between them is a code, good for one tab; never the token. Nobody else hears it: only
// pages of this server's own origin can. Talks to: /api/codes.

const LOCK = 'etude-door';
/** A tab that has the lock may be busy; one that does not answer for so long is passed over. */
const PATIENCE_MS = 10_000;
const channel = () => new BroadcastChannel(LOCK);

interface Said {
  /** Said by the tab that lets others in from now on: what was asked before it listened was heard by nobody. */
  minds?: boolean;
  /** Who wants to come in. */
  asks?: string;
  /** Whom the code is for. */
  to?: string;
  code?: string | null;
}

let minding = false;

/** From now on others are let in by this tab, or by one that was there before it, as long as that one is open. */
export function mind(token: () => string): void {
  if (minding || !('locks' in navigator)) return;
  minding = true;
  const hear = () => {
    const tabs = channel();
    tabs.onmessage = async ({ data }: MessageEvent<Said>) => {
      if (data.asks !== undefined) tabs.postMessage({ to: data.asks, code: await codeFor(token()) } satisfies Said);
    };
    tabs.postMessage({ minds: true } satisfies Said);
    return new Promise(() => {}); // held until the tab is closed
  };
  void navigator.locks.request(LOCK, hear);
}

async function codeFor(token: string): Promise<string | null> {
  if (!token) return null;
  try {
    const answer = await fetch('/api/codes', { method: 'POST', headers: { authorization: `Bearer ${token}` } });
    return answer.ok ? ((await answer.json()) as { code: string }).code : null;
  } catch {
    return null; // the server does not answer: the other tab will say so
  }
}

/** A code from a tab that is in; null where there is none. */
export async function codeOfAnother(): Promise<string | null> {
  if (!('locks' in navigator)) return null;
  const me = crypto.randomUUID();
  const tabs = channel();
  const ask = () => tabs.postMessage({ asks: me } satisfies Said);
  const answer = new Promise<string | null>((resolve) => {
    setTimeout(() => resolve(null), PATIENCE_MS);
    tabs.onmessage = ({ data }: MessageEvent<Said>) => {
      if (data.minds) ask(); // the one that was asked may be closed
      else if (data.to === me) resolve(data.code ?? null);
    };
  });
  try {
    const { held = [], pending = [] } = await navigator.locks.query();
    if (![...held, ...pending].some(({ name }) => name === LOCK)) return null;
    ask();
    return await answer;
  } finally {
    tabs.close();
  }
}
