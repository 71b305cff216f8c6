// The frame around every page: where one is, whether the server is there, appearance, the palette and the keys that hold
// everywhere. Owns no data but the list of runs, which the palette offers.
import type { ComponentType } from 'preact';
import { useEffect, useErrorBoundary, useMemo, useRef, useState } from 'preact/hooks';
import type { RunRow } from './api/types';
import { isReport } from './api/kept';
import { useKeys } from './keys';
import { listed } from './model/listed';
import { followRuns, runOf, runs } from './model/runs';
import { pageOf, type Page } from './pages';
import { go, place, to } from './router';
import { entry, work } from './session';
import { connection, retry } from './stream';
import { setTheme, theme } from './theme';
import { middle, oneLine } from './text';
import { Empty, Fault, sideways, Wait } from './ui/bits';
import { Help, help, Palette, palette, type Command } from './ui/Palette';

type Way = [name: string, label: string, key: string];
const TOP: Way[] = [['runs', 'Runs', 'r'], ['bench', 'Bench', 'b'], ['work', 'Work', 'w'], ['sessions', 'Sessions', 'e']];
const IN_RUN: Way[] = [['live', 'Live', 'l'], ['step', 'Step', 's'], ['trajectories', 'Trajectories', 't'], ['versions', 'Versions', 'v'], ['plan', 'Plan', 'p']];
const NOT_IN_A_REPORT = ['bench', 'work', 'sessions', 'plan'];
/** Pages that are there for this tab, whichever way one goes to them. */
const ways = (all: Way[]) => all.filter(([name]) => (isReport ? !NOT_IN_A_REPORT.includes(name) : name !== 'work' || work.value));

const addressOf = (run: string, name: string) => to(name === 'live' ? ['run', run] : ['run', run, name]);

export function Shell() {
  const page = pageOf(place.value);
  const known = runs.value ?? [];
  useEffect(() => (entry.value.state === 'in' ? followRuns() : undefined), [entry.value.state]);
  const run = page?.run ?? null;
  useEffect(() => {
    document.title = `${oneLine(page?.title ?? 'Not found', 80)} \u00b7 Etude studio`;
    document.querySelector('main')?.focus({ preventScroll: true });
    window.scrollTo(0, 0);
  }, [page?.title]);
  useKeys(
    [
      { keys: 'mod+k', does: 'Commands', run: () => (palette.value = !palette.value) },
      { keys: '?', does: 'These keys', run: () => (help.value = true) },
      ...ways(TOP).map(([name, label, key]) => ({ keys: `g ${key}`, does: `Go to ${label.toLowerCase()}`, run: () => go(to([name])) })),
      { keys: 'Escape', does: 'Leave a field; go up', run: () => up(page) },
      ...(run === null ? [] : ways(IN_RUN).map(([name, label, key]) => ({ keys: `g ${key}`, does: `Go to ${label.toLowerCase()}`, run: () => go(addressOf(run, name)) }))),
    ],
    [run, page?.name],
  );
  const commands = useMemo(() => commandsOf(run, known), [run, runs.value]);
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), document.querySelector<HTMLElement>('main')?.focus())}>
        Skip to the page
      </a>
      <header class="head">
        <a class="brand" href={to(['runs'])}>
          <Mark />
          Etude
        </a>
        <Nav page={page} run={run} />
        <div class="tools">
          <State />
          <button class="btn quiet" onClick={() => (palette.value = true)} aria-label="Ctrl K: commands" title="Commands">
            <span class="kbd">Ctrl K</span>
          </button>
          <Appearance />
        </div>
      </header>
      {connection.value === 'lost' && entry.value.state === 'in' && (
        <div class="lost" role="alert">
          <span class="grow">Not connected. What is shown may be old; this goes on by itself when the server answers.</span>
          <button class="btn" onClick={retry}>
            Try now
          </button>
        </div>
      )}
      <main id="main" tabIndex={-1}>
        {entry.value.state === 'out' ? (
          <Empty title={entry.value.why}>
            Open the address that <code>etude studio</code> printed, or start it again for a new one: each works once.
          </Empty>
        ) : page ? (
          <Loaded page={page} />
        ) : (
          <Empty title="There is no such page">
            <a href={to(['runs'])}>All runs</a>
          </Empty>
        )}
      </main>
      <Palette commands={commands} />
      <Help />
    </>
  );
}

function up(page: Page | null): void {
  const active = document.activeElement;
  if (active instanceof HTMLElement && active !== document.body && active.id !== 'main') return active.blur();
  if (page?.run && (page.name === 'trajectory' || page.name === 'group')) {
    const list = listed.value;
    return go(list?.run === page.run ? list.address : addressOf(page.run, 'trajectories')); // as it was left
  }
  if (page?.run && page.name !== 'live') go(addressOf(page.run, 'live'));
  else go(to([PARTS[page?.name ?? ''] ?? 'runs']));
}

/** Pages that belong to another, by which they are reached. */
const PARTS: Record<string, string> = { trajectory: 'trajectories', group: 'trajectories', review: 'work', session: 'sessions' };

function Nav({ page, run }: { page: Page | null; run: string | null }) {
  const inside = PARTS[page?.name ?? ''] ?? page?.name;
  const current = (name: string) => (inside !== name ? undefined : page?.name === name ? 'page' : 'true');
  const box = useRef<HTMLElement>(null);
  useEffect(() => sideways(box.current, box.current?.querySelector('[aria-current]')), [inside, run]);
  return (
    <nav ref={box} class="nav" aria-label="Pages">
      {ways(TOP).map(([name, label]) => (
        <a key={name} href={to([name])} aria-current={current(name)}>
          {label}
        </a>
      ))}
      {run !== null && (
        <>
          <span class="of" aria-hidden="true">
            /
          </span>
          <span class="of clip runname" title={oneLine(run)}>
            {middle(oneLine(runOf(run)?.name ?? run), 24)}
          </span>
          {ways(IN_RUN).map(([name, label]) => (
            <a key={name} href={addressOf(run, name)} aria-current={current(name)}>
              {label}
            </a>
          ))}
        </>
      )}
    </nav>
  );
}

function State() {
  if (isReport) return <span class="state">report</span>;
  const words = { connecting: 'connecting', open: 'connected', lost: 'not connected' }[connection.value];
  const tone = { connecting: 'warn', open: 'good', lost: 'bad' }[connection.value];
  return (
    <span class="state" role="status" title={words}>
      <span class={`dot ${tone}`} />
      <span class="words">{words}</span>
    </span>
  );
}

function Appearance() {
  const next = { system: 'light', light: 'dark', dark: 'system' } as const;
  const sign = { system: '\u25d0', light: '\u25cb', dark: '\u25cf' }[theme.value];
  return (
    <button class="btn quiet icon" title={`Appearance: ${theme.value}`} aria-label={`Appearance: ${theme.value}. Change it`} onClick={() => setTheme(next[theme.value])}>
      {sign}
    </button>
  );
}

function commandsOf(run: string | null, known: RunRow[]): Command[] {
  return [
    ...ways(TOP).map(([name, label, key]) => ({ name: label, hint: `g ${key}`, run: () => go(to([name])) })),
    ...(run === null ? [] : ways(IN_RUN).map(([name, label, key]) => ({ name: `${label} of this run`, hint: `g ${key}`, run: () => go(addressOf(run, name)) }))),
    ...known.map((each) => ({ name: `Run ${each.name}${each.name === each.id ? '' : ` (${each.id})`}`, run: () => go(to(['run', each.id])) })),
    ...(['system', 'light', 'dark'] as const).map((each) => ({ name: `Appearance: ${each}`, run: () => setTheme(each) })),
    { name: 'Copy the address of this view', run: () => void navigator.clipboard?.writeText(location.href) },
    { name: 'Keys', hint: '?', run: () => (help.value = true) },
  ];
}

/** The page, when its code is there. Another address of the same page keeps the component, and gives it other properties. */
function Loaded({ page }: { page: Page }) {
  const [broken, mend] = useErrorBoundary();
  useEffect(() => mend(), [page.name]);
  const [found, set] = useState<{ name: string; Of: ComponentType<any> } | null>(null);
  const [fault, setFault] = useState<string | null>(null);
  useEffect(() => {
    let left = false;
    setFault(null);
    Promise.resolve(page.load()).then(
      (Of) => left || set({ name: page.name, Of }),
      () => left || setFault('The code of this page did not come. The server may have been stopped or replaced; load the page anew.'),
    );
    return () => {
      left = true;
    };
  }, [page.name]);
  if (broken) return <Fault why={`This page has a fault of its own: ${broken instanceof Error ? broken.message : String(broken)}`} again={mend} />;
  if (fault) return <Fault why={fault} again={() => location.reload()} />;
  if (!found || found.name !== page.name) return <Wait of="the page" />;
  const { Of } = found;
  return <Of key={page.run ?? (page.name === 'session' ? String(page.props.id) : '')} {...page.props} />;
}

const Mark = () => (
  <svg viewBox="0 0 16 16" aria-hidden="true">
    <rect width="16" height="16" rx="3.5" fill="#2f5fd0" />
    <path d="M3.5 11.5 6.5 8l2.5 2 3.5-5.5" fill="none" stroke="#fff" stroke-width="1.8" stroke-linecap="round" stroke-linejoin="round" />
  </svg>
);
