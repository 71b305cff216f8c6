// Some runs laid over each other: the same figures in the same charts, and the keys of their recipes that differ.
import { api } from '../api/client';
import type { Json, RunRow, RunDetail } from '../api/types';
import { ofRun } from '../model/colours';
import { FIRST, labelOf } from '../model/series';
import { Fault, Name, Wait } from '../ui/bits';
import { Chart } from '../ui/Chart';
import { useLoad } from '../ui/load';
import { useView } from '../ui/view';
import { ViewBar } from '../ui/ViewBar';
import '../style/chart.css';

export function Compare({ ids, runs }: { ids: string[]; runs: RunRow[] }) {
  const view = useView();
  const { from, to, zoom, smooth } = view;
  const curves = useLoad((signal) => Promise.all(ids.map((id) => api.curves(id, FIRST, from, to, signal))), [ids, from, to], true);
  const details = useLoad((signal) => Promise.all(ids.map((id) => api.run(id, signal))), [ids]);
  const name = (id: string) => runs.find((each) => each.id === id)?.name ?? id;
  const names = FIRST.filter((each) => curves.data?.some((of) => of.series[each]?.x.length));
  return (
    <section class="stack" aria-label="Compared">
      <div class="cardhead">
        <h2>Compared</h2>
        <div class="key">
          {ids.map((id, at) => (
            <span key={id}>
              <i style={{ background: ofRun(at) }} />
              <Name text={name(id)} most={60} />
            </span>
          ))}
        </div>
      </div>
      {curves.data && <ViewBar view={view} x={reach(curves.data.map((each) => each.x))} />}
      {curves.error && <Fault why={curves.error} again={curves.again} />}
      {!curves.data && !curves.error && <Wait of="the curves" />}
      <div class="grid">
        {names.map((each) => (
          <div class="card" key={each}>
            <Chart
              title={labelOf(each)}
              zoom={zoom}
              smooth={smooth}
              lines={ids.flatMap((id, at) => {
                const series = curves.data?.[at]?.series[each];
                return series ? [{ name: name(id), colour: ofRun(at), series }] : [];
              })}
            />
          </div>
        ))}
      </div>
      {details.data && <Differences ids={ids} details={details.data} name={name} />}
    </section>
  );
}

/** The first step and the last of all runs. */
function reach(all: number[][]): number[] {
  const known = all.filter((each) => each.length);
  return known.length ? [Math.min(...known.map((each) => each[0]!)), Math.max(...known.map((each) => each.at(-1)!))] : [];
}

/** Keys that are not the same in all recipes, with each run's value. */
export function differing(recipes: Record<string, Json>[]): string[] {
  const keys = [...new Set(recipes.flatMap(Object.keys))].sort();
  return keys.filter((key) => new Set(recipes.map((recipe) => JSON.stringify(recipe[key]) ?? '')).size > 1);
}

function Differences({ ids, details, name }: { ids: string[]; details: RunDetail[]; name: (id: string) => string }) {
  const keys = differing(details.map((each) => each.keys as Record<string, Json>));
  return (
    <div class="card">
      <h2>Where the recipes differ</h2>
      {!keys.length && <p class="muted">They are the same.</p>}
      {keys.length > 0 && (
        <div class="scroll">
          <table aria-label="Where the recipes differ">
            <thead>
              <tr>
                <th scope="col">Key</th>
                {ids.map((id) => (
                  <th key={id} scope="col">
                    <Name text={name(id)} most={44} />
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {keys.map((key) => (
                <tr key={key}>
                  <td class="mono">{key}</td>
                  {details.map((each, at) => (
                    <td key={ids[at]} class="mono wide">
                      <Name text={JSON.stringify(each.keys[key]) ?? '\u2013'} />
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </div>
  );
}
