// Agents at work: begin a team, answer all that they ask in one inbox, see what each does, and go to what it changed.
import { useEffect, useState } from 'preact/hooks';
import { api } from '../api/client';
import type { AgentAnswer, TeamAnswer, WorkAnswer, WorkEvent } from '../api/types';
import { ago, plural, whole } from '../format';
import type { Question } from '../model/dialogue';
import { to } from '../router';
import { work } from '../session';
import { follow } from '../stream';
import { Badge, Empty, Name, Said, Wait, type Tone } from '../ui/bits';
import { Questions } from '../ui/Questions';
import '../style/work.css';

const MOST = 8;

export function WorkPage() {
  const [told, tell] = useState<WorkAnswer | null>(null);
  useEffect(() => (work.value ? follow('work', (data) => (data as Partial<WorkEvent>).work && tell((data as WorkEvent).work)) : undefined), []);
  if (!work.value) return <Empty title="This studio only looks">Start it with <code>etude studio --work</code> to have agents at work.</Empty>;
  if (!told) return <Wait of="the agents" />;
  const alive = told.teams.filter((team) => !team.ended).flatMap((team) => team.agents);
  const busy = alive.filter((agent) => agent.state !== 'resting' && !agent.error).length;
  return (
    <>
      <div class="title">
        <h1>Work</h1>
        <span class="meta">
          {plural(alive.length, 'agent')}, {whole(busy)} at work
        </span>
      </div>
      {told.inbox.length > 0 && (
        <section class="card stack" aria-label="Inbox">
          <h2>
            {plural(told.inbox.length, 'question')} <span class="muted">in the inbox</span>
          </h2>
          {told.inbox.map((each) => (
            <div key={each.session + each.request} class="stack">
              <div class="row small">
                <a href={to(['session', each.session])}>{each.agent}</a>
                <span class="muted">{each.team}</span>
              </div>
              <Questions session={each.session} request={each.request} questions={each.questions as unknown as Question[]} who={each.agent} />
            </div>
          ))}
        </section>
      )}
      {[...told.teams].reverse().map((team) => (
        <Team key={team.id} team={team} />
      ))}
      <Begin room={MOST - alive.length} first={!told.teams.length} />
    </>
  );
}

const TONES: Record<string, Tone> = { working: 'accent', starting: 'warn', failed: 'bad', resting: '' };

function Team({ team }: { team: TeamAnswer }) {
  const [fault, setFault] = useState<string | null>(null);
  const [ending, end] = useState(false);
  const stop = () => {
    end(true);
    api.endTeam(team.id).catch((why: unknown) => setFault(why instanceof Error ? why.message : String(why)));
  };
  return (
    <section class="card stack" aria-label={team.id}>
      <div class="cardhead">
        <h2>
          {team.id}{' '}
          <span class="muted mono">
            <Name text={team.directory} />
          </span>
        </h2>
        {team.ended ? (
          <Badge>ended</Badge>
        ) : (
          <button class="btn" disabled={ending} onClick={stop}>
            {ending ? 'Ending…' : 'End the team'}
          </button>
        )}
      </div>
      {fault && <p class="bad small">{fault}</p>}
      <div class="agents">
        {team.agents.map((agent) => (
          <Agent key={agent.name} team={team.id} agent={agent} />
        ))}
      </div>
      {team.conflicts.length > 0 && (
        <details>
          <summary class="warn">{plural(team.conflicts.length, 'pair')} of agents changed the same places</summary>
          <ul class="small">
            {team.conflicts.map((each) => (
              <li key={each.first + each.second}>
                {each.first} and {each.second}:{' '}
                <span class="mono">
                  <Said text={each.paths.join(', ')} />
                </span>
              </li>
            ))}
          </ul>
        </details>
      )}
    </section>
  );
}

function Agent({ team, agent }: { team: string; agent: AgentAnswer }) {
  const state = agent.error ? 'failed' : agent.state;
  return (
    <article class="agent" aria-label={agent.name}>
      <div class="row">
        <b>{agent.name}</b>
        <Badge tone={TONES[state] ?? ''}>
          {state === 'working' && <span class="dot accent live" />}
          {state === 'resting' && agent.ended ? agent.ended.replaceAll('_', ' ') : state}
        </Badge>
        {agent.asks > 0 && <Badge tone="warn">asks</Badge>}
        <span class="grow" />
        <span class="muted small">
          {plural(agent.turns, 'turn')}, begun {ago(agent.began_at)}
        </span>
      </div>
      <p class="task">
        <Said text={agent.task} />
      </p>
      {agent.error && (
        <p class="bad small">
          <Said text={agent.error} />
        </p>
      )}
      <div class="mono small muted clip doing">
        <Name text={agent.doing || '\u00a0'} />
      </div>
      <div class="row">
        {agent.session && (
          <a class="btn" href={to(['session', agent.session])}>
            Watch
          </a>
        )}
        <a class="btn" href={to(['work', team, agent.name])}>
          Review {whole(agent.files)} {agent.files === 1 ? 'file' : 'files'} <span class="good">+{agent.added}</span> <span class="bad">−{agent.removed}</span>
        </a>
      </div>
    </article>
  );
}

function Begin({ room, first }: { room: number; first: boolean }) {
  const [directory, setDirectory] = useState(localStorage.getItem('etude-directory') ?? '');
  const [written, write] = useState('');
  const [mode, setMode] = useState<'ask' | 'read' | 'auto'>('ask');
  const [fault, setFault] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const tasks = written.split('\n').map((each) => each.trim()).filter(Boolean);
  const begin = (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setFault(null);
    localStorage.setItem('etude-directory', directory);
    api.beginTeam({ directory, tasks, mode }).then(
      () => (write(''), setBusy(false)),
      (why: unknown) => (setFault(why instanceof Error ? why.message : String(why)), setBusy(false)),
    );
  };
  if (room <= 0) return <p class="muted small">Eight agents are there, and more may not be at once. End a team to begin another.</p>;
  return (
    <details class="card" open={first}>
      <summary>Begin a team</summary>
      <form class="stack beginform" onSubmit={begin}>
        <label>
          <span class="muted small">The top of a git repository on the server's machine</span>
          <input class="field mono" required value={directory} placeholder="/home/you/project" onInput={(event) => setDirectory(event.currentTarget.value)} />
        </label>
        <label>
          <span class="muted small">Tasks, one a line: each gets an agent and a worktree of its own</span>
          <textarea class="field" rows={4} required value={written} onInput={(event) => write(event.currentTarget.value)} />
        </label>
        <div class="row">
          <label class="row">
            <span class="muted small">Ask me</span>
            <select class="field" value={mode} onChange={(event) => setMode(event.currentTarget.value as 'ask')}>
              <option value="ask">as the rules say</option>
              <option value="auto">nothing that no rule denies</option>
              <option value="read">nothing: they only read</option>
            </select>
          </label>
          <button class="btn primary" disabled={busy || !tasks.length || tasks.length > room}>
            {busy ? 'Beginning…' : `Begin ${plural(tasks.length, 'agent')}`}
          </button>
          {tasks.length > room && <span class="warn small">There is room for {room}.</span>}
        </div>
        {fault && (
          <p class="bad">
            <Said text={fault} />
          </p>
        )}
      </form>
    </details>
  );
}
