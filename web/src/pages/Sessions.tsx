// The product's sessions on this machine, the newest first.
import { useState } from 'preact/hooks';
import { api } from '../api/client';
import { moment, NONE, whole } from '../format';
import { useKeys } from '../keys';
import { go, to } from '../router';
import { Badge, Empty, Name, Shown } from '../ui/bits';
import { useLoad } from '../ui/load';
import { Rows } from '../ui/Rows';

const when = (at: string | null) => (at ? moment(Date.parse(at) / 1000) : NONE);

export function Sessions() {
  const found = useLoad((signal) => api.sessions(signal), ['sessions'], true);
  const [sought, seek] = useState('');
  useKeys([{ keys: '/', does: 'Look for a session', run: () => document.getElementById('seek')?.focus() }], []);
  return (
    <>
      <div class="title">
        <h1>Sessions</h1>
        <span class="meta">{found.data && `${whole(found.data.total)} there${found.data.sessions.length < found.data.total ? `, of which the newest ${whole(found.data.sessions.length)} are here` : ''}`}</span>
        <span class="grow" />
        <input id="seek" class="field" type="search" placeholder="Prompt or directory" aria-label="Look for a session" value={sought} onInput={(event) => seek(event.currentTarget.value)} />
      </div>
      <Shown from={found} of="the sessions">
        {({ sessions }) => {
          const rows = sessions.filter((row) => `${row.task} ${row.directory ?? ''} ${row.id}`.toLowerCase().includes(sought.toLowerCase()));
          if (!sessions.length) return <Empty title="No session yet">Begin one with <code>etude agent</code> in a project of yours.</Empty>;
          if (!rows.length) return <Empty title={`No session that is here begins with \u201c${sought}\u201d, or is of such a directory`}>Only the first prompt, the directory and the id are looked through.</Empty>;
          return (
            <div class="card">
              <Rows
                label="Sessions"
                rows={rows}
                id={(row) => row.id}
                open={(row) => go(to(['session', row.id]))}
                columns={[
                  { name: 'task', label: 'First prompt', kind: 'wide', cell: (row) => <a href={to(['session', row.id])}><Name text={row.task || row.id} /></a> },
                  { name: 'state', label: 'State', cell: (row) => (row.working ? <Badge tone="accent">working</Badge> : row.open ? <Badge tone="good">open</Badge> : <Badge>closed</Badge>) },
                  { name: 'directory', label: 'Directory', kind: 'wide', cell: (row) => <Name text={row.directory ?? NONE} mono most={40} /> },
                  { name: 'active', label: 'Last active', cell: (row) => <span class="muted">{when(row.last_active)}</span> },
                  { name: 'began', label: 'Begun', cell: (row) => <span class="muted">{when(row.began)}</span> },
                  { name: 'id', label: 'Id', cell: (row) => <span class="mono muted">{row.id}</span> },
                ]}
              />
            </div>
          );
        }}
      </Shown>
    </>
  );
}
