// One group: its task, and its members side by side.
import { useState } from 'preact/hooks';
import { api } from '../api/client';
import type { GroupAnswer } from '../api/types';
import { plural } from '../format';
import { to } from '../router';
import { Empty, Long, Name, Shown, WHOLE } from '../ui/bits';
import { useLoad } from '../ui/load';
import { Members } from '../ui/Members';

export function GroupPage({ run, id }: { run: string; id: string }) {
  const found = useLoad((signal) => api.group(run, id, signal), [run, id]);
  return (
    <Shown from={found} of="the group">
      {(data) => <Body run={run} id={id} data={data} />}
    </Shown>
  );
}

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
      {members.length ? <Members run={run} members={members} parting={data.parting} /> : <Empty title="No member is kept" />}
    </>
  );
}
