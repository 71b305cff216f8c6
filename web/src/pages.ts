// Which page an address names, and how its code comes: the list of runs at once, every other when it is first asked for.
import type { ComponentType } from 'preact';
import { Runs } from './pages/Runs';
import { idOf, type Place } from './router';

export interface Page {
  name: string;
  title: string;
  props: Record<string, unknown>;
  run: string | null;
  load: () => Promise<ComponentType<any>> | ComponentType<any>;
}

const lazy = {
  live: () => import('./pages/Live').then((m) => m.LivePage),
  step: () => import('./pages/StepPage').then((m) => m.StepPage),
  trajectories: () => import('./pages/Trajectories').then((m) => m.Trajectories),
  trajectory: () => import('./pages/TrajectoryPage').then((m) => m.TrajectoryPage),
  group: () => import('./pages/GroupPage').then((m) => m.GroupPage),
  versions: () => import('./pages/Versions').then((m) => m.Versions),
  plan: () => import('./pages/PlanPage').then((m) => m.PlanPage),
  bench: () => import('./pages/Bench').then((m) => m.Bench),
  work: () => import('./pages/Work').then((m) => m.WorkPage),
  review: () => import('./pages/Review').then((m) => m.Review),
  sessions: () => import('./pages/Sessions').then((m) => m.Sessions),
  session: () => import('./pages/SessionPage').then((m) => m.SessionPage),
};

/** Null for an address that names nothing. */
export function pageOf({ parts }: Place): Page | null {
  const [first, id, kind, what] = parts;
  if (first === 'runs' && parts.length === 1) return { name: 'runs', title: 'Runs', props: {}, run: null, load: () => Runs };
  if (first === 'bench' && parts.length === 1) return { name: 'bench', title: 'Bench', props: {}, run: null, load: lazy.bench };
  if (first === 'work' && parts.length === 1) return { name: 'work', title: 'Work', props: {}, run: null, load: lazy.work };
  if (first === 'work' && id && kind) return { name: 'review', title: `What ${kind} changed`, props: { team: id, agent: kind }, run: null, load: lazy.review };
  if (first === 'sessions' && parts.length === 1) return { name: 'sessions', title: 'Sessions', props: {}, run: null, load: lazy.sessions };
  if (first === 'session' && id) return { name: 'session', title: 'Session', props: { id }, run: null, load: lazy.session };
  if (first !== 'run' || id === undefined) return null;
  const run = idOf(id);
  const page = (name: keyof typeof lazy, title: string, props: Record<string, unknown> = {}): Page => ({
    name, title: `${title} \u00b7 ${run}`, props: { run, ...props }, run, load: lazy[name],
  });
  if (kind === undefined) return page('live', 'Live');
  if (kind === 'step') return page('step', what ? `Step ${what}` : 'Step', { step: what && /^\d+$/.test(what) ? Number(what) : null });
  if (kind === 'trajectories') return page('trajectories', 'Trajectories');
  if (kind === 'trajectory' && what) return page('trajectory', idOf(what), { id: idOf(what) });
  if (kind === 'group' && what) return page('group', idOf(what), { id: idOf(what) });
  if (kind === 'versions') return page('versions', 'Versions');
  if (kind === 'plan') return page('plan', 'Plan');
  return null;
}
