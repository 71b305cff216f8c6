// Rollouts of one task side by side, turn by turn, and where they part ways.
import type { GroupAnswer, MemberAnswer } from '../api/types';
import { figure, plural, seconds, versions, whole } from '../format';
import { to } from '../router';
import { OutcomeBadge, Said } from './bits';
import '../style/read.css';

export function Members({ run, members, parting }: { run: string; members: MemberAnswer[]; parting: GroupAnswer['parting'] }) {
  const parts = new Set(parting.map((each) => each.turn));
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
            <tr key={at} class={parts.has(at) ? 'parts' : undefined}>
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
