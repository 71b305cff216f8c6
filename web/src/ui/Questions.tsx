// What an agent asks before it does it, and the answers a person may give: once, for the session, for the project, or a no with
// words for the model. Owns that every question of a request is answered together, as the server wants it.
import { useState } from 'preact/hooks';
import { api } from '../api/client';
import type { OneAnswer } from '../api/types';
import type { Question } from '../model/dialogue';
import { Long, Said } from './bits';

interface Props {
  session: string;
  request: string;
  questions: Question[];
  who: string;
}

export function Questions({ session, request, questions, who }: Props) {
  const [words, write] = useState('');
  const [fault, setFault] = useState<string | null>(null);
  const [sent, send] = useState(false);
  const say = (answer: OneAnswer) => {
    send(true);
    setFault(null);
    api.answer(session, request, questions.map(() => answer)).catch((why: unknown) => {
      send(false);
      setFault(why instanceof Error ? why.message : String(why));
    });
  };
  const rules = [...new Set(questions.flatMap((each) => each.rules))];
  return (
    <article class="asked" aria-label={`${who} asks`}>
      {questions.map((each, at) => (
        <div key={at} class="stack question">
          <div class="row">
            <b class="mono">
              <Said text={each.tool} />
            </b>
            <span class="muted small grow">
              <Said text={each.why} />
            </span>
          </div>
          <pre>
            {Object.entries(each.arguments).map(([name, value]) => (
              <div key={name}>
                <span class="muted">
                  <Said text={name} />{' '}
                </span>
                <Long text={typeof value === 'string' ? value : JSON.stringify(value)} />
              </div>
            ))}
          </pre>
        </div>
      ))}
      <div class="row">
        <button class="btn primary" disabled={sent} onClick={() => say({ allowed: true, remember: 'once' })}>
          Allow
        </button>
        {rules.length > 0 && (
          <>
            <button class="btn" disabled={sent} title={rules.join('\n')} onClick={() => say({ allowed: true, remember: 'session' })}>
              Allow in this session
            </button>
            <button class="btn" disabled={sent} title={rules.join('\n')} onClick={() => say({ allowed: true, remember: 'project' })}>
              Allow in this project
            </button>
          </>
        )}
        <input class="field grow" placeholder="Deny with words for the model, and Enter" aria-label="Words for the model" value={words} onInput={(event) => write(event.currentTarget.value)} onKeyDown={(event) => event.key === 'Enter' && words.trim() && !sent && say({ allowed: false, words })} />
        <button class="btn" disabled={sent} onClick={() => say({ allowed: false, words })}>
          Deny
        </button>
      </div>
      {fault && <p class="bad small">{fault}</p>}
    </article>
  );
}
