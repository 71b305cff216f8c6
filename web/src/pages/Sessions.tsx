// The product's sessions on this machine, the newest first.
import { useState } from 'preact/hooks';
import { api, type SessionRow } from '../api/client';
import { moment, NONE, whole } from '../format';
import { useKeys } from '../keys';
import { go, to } from '../router';
import { Badge, Empty, Name, Shown } from '../ui/bits';
import { useLoad } from '../ui/load';
import { Rows } from '../ui/Rows';

const when = (row: SessionRow) => (typeof row.began === 'number' ? moment(row.began) : (row.began ?? NONE).replace('T', ' ').slice(0, 19));

export function Sessions() {
  const found = useLoad((signal) => api.sessions(signal), ['sessions'], true);
  const [sought, seek] = useState('');
  useKeys([{ keys: '/', does: 'Look for a session', run: () => document.getElementById('seek')?.focus() }], []);
  return (
    <>
      <div class="title">
        <h1>Sessions</h1>
        <span class="meta">{found.data && `${whole(found.data.total)} there`}</span>
        <span class="grow" />
        <input id="seek" class="field" type="search" placeholder="Words of a prompt, a directory" aria-label="Look for a session" value={sought} onInput={(event) => seek(event.currentTarget.value)} />
      </div>
      <Shown from={found} of="the sessions">
        {({ sessions }) => {
          const rows = sessions.filter((row) => `${row.prompts.join(' ')} ${row.directory ?? ''} ${row.id}`.toLowerCase().includes(sought.toLowerCase()));
          if (!sessions.length) return <Empty title="No session yet">Begin one with <code>etude agent</code> in a project of yours.</Empty>;
          if (!rows.length) return <Empty title={`No session says \u201c${sought}\u201d`} />;
          return (
            <div class="card">
              <Rows
                label="Sessions"
                rows={rows}
                id={(row) => row.id}
                open={(row) => go(to(['session', row.id]))}
                columns={[
                  { name: 'prompt', label: 'First prompt', kind: 'wide', cell: (row) => <a href={to(['session', row.id])}><Name text={row.prompts[0] ?? row.id} /></a> },
                  { name: 'state', label: 'State', cell: (row) => <Badge tone={row.state === 'working' ? 'accent' : ''}>{row.state === 'working' ? 'working' : (row.stop ?? 'cut short').replaceAll('_', ' ')}</Badge> },
                  { name: 'prompts', label: 'Prompts', kind: 'r', cell: (row) => whole(row.prompts.length) },
                  { name: 'lines', label: 'Events', kind: 'r', cell: (row) => whole(row.lines) },
                  { name: 'model', label: 'Model', kind: 'wide', cell: (row) => <Name text={row.model || NONE} mono /> },
                  { name: 'directory', label: 'Directory', kind: 'wide', cell: (row) => <Name text={row.directory ?? NONE} mono /> },
                  { name: 'began', label: 'Begun', cell: (row) => <span class="muted">{when(row)}</span> },
                ]}
              />
            </div>
          );
        }}
      </Shown>
    </>
  );
}
