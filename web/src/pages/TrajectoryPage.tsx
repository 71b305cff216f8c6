// One trajectory: what the agent said and did, what came of it, and the tokens that were trained on. Owns which part is shown
// and that parts are loaded when they are looked at.
import { useEffect, useState } from 'preact/hooks';
import { api } from '../api/client';
import type { Note, TrajectoryAnswer, TurnAnswer } from '../api/types';
import { figure, moment, NONE, plural, seconds, signed, versions, whole } from '../format';
import { useKeys } from '../keys';
import { beside, listed } from '../model/listed';
import type { Way } from '../model/tokens';
import { WAYS } from '../model/tokens';
import { go, place, refine, to } from '../router';
import { Badge, Empty, Facts, Long, Name, OutcomeBadge, Panel, Said, Shown, Some, Tabs, WHOLE } from '../ui/bits';
import { DiffView } from '../ui/DiffView';
import { useLoad } from '../ui/load';
import { Output } from '../ui/Output';
import { TokenView } from '../ui/TokenView';
import { Turns } from '../ui/Turns';
import '../style/chart.css';
import '../style/read.css';

const TURNS = 100;
const TABS = ['turns', 'tokens', 'files', 'verifier', 'findings', 'task'];

export function TrajectoryPage({ run, id }: { run: string; id: string }) {
  const found = useLoad((signal) => api.trajectory(run, id, `0,${TURNS}`, signal), [run, id]);
  return (
    <Shown from={found} of="the trajectory">
      {(data) => <Body key={id} run={run} data={data} again={found.again} />}
    </Shown>
  );
}

/** Whether it is one of several of the same task; those of an evaluation are of a task each. */
const isOfGroup = (row: TrajectoryAnswer['row']) => row.phase === 'training';

function Body({ run, data, again }: { run: string; data: TrajectoryAnswer; again: () => void }) {
  const { row } = data;
  const asked = place.value.query.get('tab') ?? 'turns';
  const tab = TABS.includes(asked) ? asked : 'turns';
  const choose = (next: string) => refine({ tab: next === 'turns' ? null : next, event: null });
  const turn = (by: number) => {
    const next = beside(listed, run, row.id, by);
    if (next !== null) go(to(['run', run, 'trajectory', next], { tab: place.value.query.get('tab'), by: place.value.query.get('by') }));
  };
  useKeys(
    [
      { keys: '[', does: 'The one before in the list', run: () => turn(-1) },
      { keys: ']', does: 'The next in the list', run: () => turn(1) },
      ...TABS.map((each, at) => ({ keys: String(at + 1), does: `Show ${each}`, run: () => choose(each) })),
      ...(isOfGroup(row) ? [{ keys: 'o', does: 'Open its group', run: () => go(to(['run', run, 'group', row.group_id])) }] : []),
    ],
    [run, row.id],
  );
  return (
    <>
      <Head run={run} data={data} turn={turn} />
      <Tabs
        label="Parts of the trajectory"
        now={tab}
        choose={choose}
        tabs={[
          { id: 'turns', label: 'Turns', count: data.turns_total },
          { id: 'tokens', label: 'Tokens', count: whole(row.total_tokens) },
          { id: 'files', label: 'Files', count: data.files_total },
          { id: 'verifier', label: 'Verifier', ...(data.verifier.text ? {} : { count: 0 }) },
          { id: 'findings', label: 'Findings', count: data.findings.length },
          { id: 'task', label: 'Task' },
        ]}
      />
      <Panel id={tab}>
        {tab === 'turns' && <AllTurns run={run} data={data} again={again} />}
        {tab === 'tokens' && <TokensOf run={run} data={data} />}
        {tab === 'files' && <DiffView run={run} id={row.id} first={data.files} total={data.files_total} />}
        {tab === 'verifier' && <Verifier run={run} data={data} />}
        {tab === 'findings' && <Findings data={data} />}
        {tab === 'task' && <TaskOf data={data} />}
      </Panel>
    </>
  );
}

function Head({ run, data, turn }: { run: string; data: TrajectoryAnswer; turn: (by: number) => void }) {
  const { row, outcome, marks } = data;
  const parts = Object.entries(outcome.parts).filter(([, value]) => value !== 0);
  return (
    <div class="stack">
      <div class="crumb">
        <a href={to(['run', run, 'trajectories'], { task: row.task_id })}>
          <Name text={row.task_id} />
        </a>
        {isOfGroup(row) && (
          <>
            <span>/</span>
            <a href={to(['run', run, 'group', row.group_id])}>group {row.group_id}</a>
          </>
        )}
      </div>
      <div class="title">
        <h1 class="mono">{row.id}</h1>
        <OutcomeBadge row={row} />
        {row.phase !== 'training' && <Badge tone="accent">{row.phase}</Badge>}
        {row.limit && <Badge tone="warn">limit: {row.limit}</Badge>}
        {row.dropped && <Badge title="Why it was not trained on">left out: {row.dropped.replaceAll('_', ' ')}</Badge>}
        {listed.value?.run === run && listed.value.ids.includes(row.id) && (
          <>
            <span class="grow" />
            <button class="btn" disabled={beside(listed, run, row.id, -1) === null} onClick={() => turn(-1)}>
              Before <span class="kbd">[</span>
            </button>
            <button class="btn" disabled={beside(listed, run, row.id, 1) === null} onClick={() => turn(1)}>
              Next <span class="kbd">]</span>
            </button>
          </>
        )}
      </div>
      <div class="card">
        <Facts
          of={[
            ['Reward', <b>{figure(row.reward)}</b>],
            ['Made of', parts.length ? parts.map(([name, value]) => `${name} ${signed(value)}`).join(', ') : NONE],
            ['Trained on', marks ? <a href={to(['run', run, 'step', marks.step])}>step {marks.step}</a> : row.step !== null ? <a href={to(['run', run, 'step', row.step])}>step {row.step}</a> : 'no'],
            ['Turns', whole(row.turns)],
            ['Calls', whole(row.calls)],
            ['Tokens', `${whole(row.sampled_tokens)} sampled of ${whole(row.total_tokens)}`],
            ['Versions', versions(row.oldest_version, row.newest_version)],
            ['Took', seconds(row.seconds)],
            ['Worker', row.worker ?? NONE],
            ['Begun', moment(row.begun_at)],
          ]}
        />
        {outcome.evidence && (
          <p class="small evidence">
            <span class="muted">Evidence: </span>
            <Long text={outcome.evidence} />
          </p>
        )}
      </div>
    </div>
  );
}

/** The first hundred turns come with the trajectory; the next are asked for when somebody wants them. */
function AllTurns({ run, data, again }: { run: string; data: TrajectoryAnswer; again: () => void }) {
  const [turns, set] = useState<TurnAnswer[]>(data.turns);
  const [fault, setFault] = useState<string | null>(null);
  useEffect(() => set(data.turns), [data]);
  const more = () =>
    api.trajectory(run, data.row.id, `${turns.length},${TURNS}`).then(
      (found) => set((old) => [...old, ...found.turns]),
      (why: unknown) => setFault(why instanceof Error ? why.message : String(why)),
    );
  const left = data.turns_total - turns.length;
  const event = Number(place.value.query.get('event') ?? NaN);
  useEffect(() => {
    const missing = !Number.isNaN(event) && left > 0 && !turns.some((turn) => turn.calls.some((call) => call.event === event));
    if (missing) void more();
  }, [event, turns.length]);
  const annotate = async (note: { event: number; text: string }) => {
    await api.annotate(run, data.row.id, note);
    again();
  };
  const forget = async (note: Note) => {
    await api.forget(run, data.row.id, note.id);
    again();
  };
  if (!turns.length) return <Empty title="No turn was kept">{data.row.outcome === 'infra_failed' ? 'The machinery failed before the first.' : 'The session ended before the model said anything.'}</Empty>;
  return (
    <>
      <Turns run={run} id={data.row.id} turns={turns} findings={data.findings} notes={data.annotations} event={Number.isNaN(event) ? null : event} annotate={annotate} forget={forget} />
      {fault && <p class="bad">{fault}</p>}
      {left > 0 && (
        <div>
          <button class="btn" onClick={() => void more()}>
            Show {whole(Math.min(left, TURNS))} more of {whole(left)}
          </button>
        </div>
      )}
    </>
  );
}

function TokensOf({ run, data }: { run: string; data: TrajectoryAnswer }) {
  const query = place.value.query;
  const asked = query.get('by') ?? 'logprob';
  const way = (asked in WAYS ? asked : 'logprob') as Way;
  const segment = Math.max(0, Math.min(data.segments.length - 1, Number(query.get('segment')) || 0));
  const found = data.segments[segment];
  if (!found) return <Empty title="No tokens were kept" />;
  return (
    <>
      {data.segments.length > 1 && (
        <Tabs
          label="Segments"
          now={String(segment)}
          choose={(next) => refine({ segment: next === '0' ? null : next, token: null })}
          tabs={data.segments.map((each, at) => ({ id: String(at), label: `Segment ${at + 1}${each.kind === 'turns' ? '' : ` (${each.kind})`}`, count: whole(each.tokens) }))}
        />
      )}
      <TokenView key={segment} run={run} row={data.row} segment={segment} count={found.tokens} way={way} choose={(next) => refine({ by: next === 'logprob' ? null : next })} start={Number(query.get('token')) || 0} />
    </>
  );
}

function Verifier({ run, data }: { run: string; data: TrajectoryAnswer }) {
  if (!data.verifier.text) return <Empty title="The verifier printed nothing">{data.task?.verifier && <code>{data.task.verifier}</code>}</Empty>;
  return (
    <div class="card">
      <h2>What the verifier printed</h2>
      <Output run={run} id={data.row.id} event={null} first={data.verifier} />
    </div>
  );
}

function Findings({ data }: { data: TrajectoryAnswer }) {
  if (!data.findings.length) return <Empty title="The auditor found nothing" />;
  return (
    <div class="card">
      <h2>{plural(data.findings.length, 'finding')}</h2>
      <Some of={data.findings} what="finding">
        {(each, at) => (
          <div key={at} class="findingline">
            <span class="dot warn" />
            <span class="grow">
              <Long text={each.text} />
            </span>
            {each.event !== null && (
              <button class="btn" onClick={() => refine({ tab: null, event: each.event })}>
                Show the call
              </button>
            )}
          </div>
        )}
      </Some>
    </div>
  );
}

function TaskOf({ data }: { data: TrajectoryAnswer }) {
  const { task } = data;
  const more = data.prompts.slice(task ? 1 : 0);
  const facts: [string, unknown][] = task
    ? [['verifier', task.verifier], ['split', task.split], ['files', task.files], ...Object.entries(task.provenance)]
    : [];
  return (
    <>
      {task && (
        <div class="card stack">
          <h2>
            <Name text={task.id} />
          </h2>
          <pre>
            <Long text={task.instruction} first={WHOLE} />
          </pre>
          <Pairs label="More of the task" of={facts} />
        </div>
      )}
      {more.map((each, at) => (
        <div key={at} class="card stack">
          <h2>{task ? 'The user went on' : 'What the user said'}</h2>
          <pre>
            <Long text={each} first={WHOLE} />
          </pre>
        </div>
      ))}
      <div class="grid">
        <div class="card">
          <h2>What it took</h2>
          <Pairs label="What it took" of={Object.entries(data.usage)} />
        </div>
        <div class="card">
          <h2>Where it was played</h2>
          <Pairs label="Where it was played" of={Object.entries(data.environment)} />
        </div>
      </div>
    </>
  );
}

function Pairs({ label, of: pairs }: { label: string; of: [string, unknown][] }) {
  const given = pairs.filter(([, value]) => value !== null && value !== undefined && value !== '' && value !== 0);
  return (
    <table class="plain small" aria-label={label}>
      <tbody>
        {given.map(([name, value]) => (
          <tr key={name}>
            <td class="muted">
              <Said text={name.replaceAll('_', ' ')} />
            </td>
            <td class="wrap mono">
              <Long first={4000} text={typeof value === 'string' ? value : Array.isArray(value) && value.every((each) => typeof each === 'string') ? value.join('\n') : JSON.stringify(value)} />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
