// The members of one group side by side, turn by turn, and where they part ways.
import { useState } from 'preact/hooks';
import { api } from '../api/client';
import type { GroupAnswer, MemberAnswer } from '../api/types';
import { figure, plural, seconds, versions, whole } from '../format';
import { to } from '../router';
import { Empty, Long, Name, OutcomeBadge, Said, Shown, WHOLE } from '../ui/bits';
import { useLoad } from '../ui/load';
import '../style/read.css';

export function GroupPage({ run, id }: { run: string; id: string }) {
  const found = useLoad((signal) => api.group(run, id, signal), [run, id]);
  return (
    <Shown from={found} of="the group">
      {(data) => <Body run={run} id={id} data={data} />}
    </Shown>
  );
}

type Member = MemberAnswer;

function Body({ run, id, data }: { run: string; id: string; data: GroupAnswer }) {
  const [order, setOrder] = useState<'id' | 'reward'>('reward');
  const members = order === 'id' ? data.members : [...data.members].sort((a, b) => (b.row.reward ?? -9) - (a.row.reward ?? -9));
  const solved = members.filter((each) => each.row.solved).length;
  const task = data.task?.id ?? data.members[0]?.row.task_id;
  const first = data.parting[0]?.turn ?? null;
  return (
    <>
      <div class="crumb">
        {task && (
          <a href={to(['run', run, 'trajectories'], { task })}>
            <Name text={task} />
          </a>
        )}
      </div>
      <div class="title">
        <h1 class="mono">group {id}</h1>
        <span class="meta">
          {plural(members.length, 'member')}, {solved} solved{first !== null && `; they part ways at turn ${first + 1}`}
        </span>
        <span class="grow" />
        <label class="row small">
          <span class="muted">Order</span>
          <select class="field" value={order} onChange={(event) => setOrder(event.currentTarget.value as 'id')}>
            <option value="reward">best first</option>
            <option value="id">as sampled</option>
          </select>
        </label>
      </div>
      {data.task && (
        <details class="card">
          <summary>The task</summary>
          <pre>
            <Long text={data.task.instruction} first={WHOLE} />
          </pre>
        </details>
      )}
      {members.length ? <Side run={run} members={members} data={data} /> : <Empty title="No member is kept" />}
    </>
  );
}

function Side({ run, members, data }: { run: string; members: Member[]; data: GroupAnswer }) {
  const parting = new Set(data.parting.map((each) => each.turn));
  const turns = Math.max(0, ...members.map((each) => each.calls.length));
  return (
    <div class="card members" tabIndex={0} role="group" aria-label="Members side by side">
      <table aria-label="Members side by side, a row a turn">
        <thead>
          <tr>
            <th class="turnno" scope="col">
              <span class="sr">Turn</span>
            </th>
            {members.map(({ row: each }) => (
              <th key={each.id} scope="col">
                <a class="mono" href={to(['run', run, 'trajectory', each.id])}>
                  {each.id}
                </a>{' '}
                <OutcomeBadge row={each} />
                <div class="num memberfacts">
                  <b>{figure(each.reward)}</b> · {whole(each.sampled_tokens)} tokens · {versions(each.oldest_version, each.newest_version)} · {seconds(each.seconds)}
                </div>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {Array.from({ length: turns }, (_, at) => at).map((at) => (
            <tr key={at} class={parting.has(at) ? 'parts' : undefined}>
              <th class="turnno" scope="row">
                {at + 1}
              </th>
              {members.map((each) => (
                <td key={each.row.id}>{each.calls[at] !== undefined && <Said text={each.calls[at]} />}</td>
              ))}
            </tr>
          ))}
          <tr>
            <th class="turnno" scope="row">
              diff
            </th>
            {members.map((each) => (
              <td key={each.row.id}>
                {each.files ? (
                  <a href={to(['run', run, 'trajectory', each.row.id], { tab: 'files' })}>
                    {plural(each.files, 'file')} +{each.added} −{each.removed}
                  </a>
                ) : (
                  <span class="muted">nothing changed</span>
                )}
              </td>
            ))}
          </tr>
        </tbody>
      </table>
    </div>
  );
}
