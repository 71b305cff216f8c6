// Loads what a page shows. Owns the three states of it (waiting, there, failed) and that an answer which comes too late is
// dropped.
import { useCallback, useEffect, useRef, useState } from 'preact/hooks';

export interface Loaded<T> {
  data: T | null;
  error: string | null;
  loading: boolean;
  again: () => void;
}

/** Asks when `keys` change. With `keep`, the old answer stays in place until the new one is there. */
export function useLoad<T>(ask: (signal: AbortSignal) => Promise<T>, keys: unknown[], keep = false): Loaded<T> {
  const [state, set] = useState<Omit<Loaded<T>, 'again'>>({ data: null, error: null, loading: true });
  const [turn, setTurn] = useState(0);
  const before = useRef('');
  const again = useCallback(() => setTurn((value) => value + 1), []);
  const key = JSON.stringify(keys);
  useEffect(() => {
    const stop = new AbortController();
    const same = before.current === key;
    before.current = key;
    set((old) => ({ data: keep || same ? old.data : null, error: null, loading: true }));
    ask(stop.signal).then(
      (data) => stop.signal.aborted || set({ data, error: null, loading: false }),
      (error: unknown) =>
        stop.signal.aborted || set((old) => ({ ...old, error: error instanceof Error ? error.message : String(error), loading: false })),
    );
    return () => stop.abort();
  }, [key, turn]);
  return { ...state, again };
}
