// All runs that the server knows; two to eight of them are laid over each other.
import type { ComponentType } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import type { RunRow } from '../api/types';
import { ago, bytes, figure, moment, NONE, percent, whole } from '../format';
import { useKeys } from '../keys';
import { followRuns, remarks, runs, runsFault } from '../model/runs';
import { go, place, refine, to } from '../router';
import { Empty, Name, Said, Shown, StateBadge } from '../ui/bits';
import { Rows, type Column } from '../ui/Rows';

const MOST = 8;

export function Runs() {
  const all = runs.value;
  const sought = place.value.query.get('text') ?? '';
  const seek = (text: string) => refine({ text });
  const chosen = (place.value.query.get('compare') ?? '').split(',').filter(Boolean);
  const choose = (id: string) => {
    const next = chosen.includes(id) ? chosen.filter((each) => each !== id) : [...chosen, id].slice(-MOST);
    refine({ compare: next.join(',') });
  };
  useKeys([{ keys: '/', does: 'Look for a run', run: () => document.getElementById('seek')?.focus() }], []);
  return (
    <>
      <div class="title">
        <h1>Runs</h1>
        <span class="meta">{all && `${whole(all.length)} found`}</span>
        <span class="grow" />
        <input id="seek" class="field" type="search" placeholder="Name or recipe" aria-label="Look for a run" value={sought} onInput={(event) => seek(event.currentTarget.value)} />
      </div>
      {remarks.value.map((each) => (
        <p key={each} class="warn small" role="status">
          <Said text={each} />
        </p>
      ))}
      <Shown from={{ data: all, error: runsFault.value, loading: false, again: followRuns }} of="the runs">
        {(all) => {
          const found = all.filter((run) => `${run.name} ${run.id} ${run.recipe ?? ''}`.toLowerCase().includes(sought.toLowerCase()));
          if (!all.length) return <Empty title="No run yet">Train one with <code>make quickstart</code>, or start the studio with the directory that holds your runs.</Empty>;
          if (!found.length) return <Empty title={`No run has \u201c${sought}\u201d in its name or recipe`} />;
          return (
            <>
              <div class="card">
                <Rows
                  label="Runs"
                  rows={found}
                  columns={columns(chosen, choose)}
                  id={(run) => run.id}
                  open={(run) => go(to(['run', run.id]))}
                  keys={[{ key: 'x', does: 'Lay the run over others', run: (run) => choose(run.id) }]}
                />
              </div>
              {chosen.length === 1 && <p class="muted">Choose one more run to compare them.</p>}
              {chosen.length > 1 && <Compared ids={chosen} runs={all} />}
              {chosen.length === 0 && all.length > 1 && <p class="muted small">Tick two to {MOST} runs to lay their curves over each other and see how their recipes differ.</p>}
            </>
          );
        }}
      </Shown>
    </>
  );
}

function columns(chosen: string[], choose: (id: string) => void): Column<RunRow>[] {
  return [
    { name: 'pick', kind: 'tick', label: <span class="sr">Compare</span>, cell: (run) => <input type="checkbox" aria-label={`Compare ${run.name}`} checked={chosen.includes(run.id)} onChange={() => choose(run.id)} /> },
    { name: 'name', label: 'Run', kind: 'wide', sort: (run) => run.name, cell: (run) => <a href={to(['run', run.id])}><Name text={run.name} most={36} /></a> },
    { name: 'state', label: 'State', sort: (run) => run.state, cell: (run) => <StateBadge state={run.state} /> },
    { name: 'steps', label: 'Steps', kind: 'r', sort: (run) => run.steps, cell: (run) => whole(run.steps) },
    { name: 'reward', label: 'Reward', kind: 'r', sort: (run) => run.figures.reward ?? null, cell: (run) => figure(run.figures.reward) },
    { name: 'solve', label: 'Solved', kind: 'r', title: 'Share of the latest rollouts', sort: (run) => run.figures.solve_rate ?? null, cell: (run) => percent(run.figures.solve_rate) },
    { name: 'trajectories', label: 'Trajectories', kind: 'r', cell: (run) => (run.trajectories === null ? <a href={to(['run', run.id, 'trajectories'])}>open</a> : <a href={to(['run', run.id, 'trajectories'])}>{whole(run.trajectories)}</a>) },
    { name: 'bytes', label: 'Size', kind: 'r', title: 'Metrics and archive, without weights and checkpoints', sort: (run) => run.bytes, cell: (run) => bytes(run.bytes) },
    { name: 'updated', label: 'Changed', sort: (run) => run.updated_at, cell: (run) => <span class="muted" title={moment(run.updated_at)}>{ago(run.updated_at)}</span> },
    { name: 'recipe', label: 'Recipe', kind: 'wide', sort: (run) => run.recipe, cell: (run) => (run.recipe ? <Name text={run.recipe} mono /> : NONE) },
  ];
}

/** Charts come with their own code, when the first two runs are chosen. */
function Compared(props: { ids: string[]; runs: RunRow[] }) {
  const [Of, set] = useState<{ page: ComponentType<typeof props> } | null>(null);
  useEffect(() => void import('./Compare').then((m) => set({ page: m.Compare })), []);
  return Of ? <Of.page {...props} /> : <p class="wait">Loading the charts…</p>;
}
