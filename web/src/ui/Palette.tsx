// The command palette (Ctrl-K), and the help that lists the keys. Owns which commands there are: pages, runs, appearance.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import { signal } from '@preact/signals';
import { held, type Key } from '../keys';
import { oneLine } from '../text';

export interface Command {
  name: string;
  hint?: string;
  run: () => void;
}

export const palette = signal(false);
export const help = signal(false);

/** A dialog that is open while its signal says so. Escape is answered here: the browser would close it and say so only
 * later, and a key pressed in between would find a signal that still says open.
 */
function useDialog(open: boolean, close: () => void) {
  const dialog = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => {
    // at once, whatever was drawn before: what is typed next belongs to it
    if (open && !dialog.current?.open) dialog.current?.showModal();
    if (!open && dialog.current?.open) dialog.current.close();
  });
  return {
    ref: dialog,
    onKeyDown: (event: KeyboardEvent) => {
      if (event.key !== 'Escape') return;
      event.preventDefault();
      dialog.current?.close();
      close();
    },
    onClose: () => !dialog.current?.open && close(), // it may tell of a closing that is past
    onClick: (event: MouseEvent) => event.target === dialog.current && close(),
  };
}

/** Commands with all the words in their names, the best first: those that begin with what was written. */
export function matching(commands: Command[], written: string): Command[] {
  const words = written.toLowerCase().split(/\s+/).filter(Boolean);
  const found = commands.filter(({ name }) => words.every((word) => name.toLowerCase().includes(word)));
  const first = words[0] ?? '';
  return found.sort((a, b) => Number(!a.name.toLowerCase().startsWith(first)) - Number(!b.name.toLowerCase().startsWith(first))).slice(0, 60);
}

export function Palette({ commands }: { commands: Command[] }) {
  const open = palette.value;
  const close = () => (palette.value = false);
  const dialog = useDialog(open, close);
  const [written, write] = useState('');
  const [at, move] = useState(0);
  const list = useRef<HTMLUListElement>(null);
  const found = useMemo(() => (open ? matching(commands, written) : []), [open, commands, written]);
  useEffect(() => {
    write('');
    move(0);
  }, [open]);
  useEffect(() => list.current?.children[at]?.scrollIntoView({ block: 'nearest' }), [at]);
  const run = (command: Command | undefined) => {
    if (!command) return;
    close();
    command.run();
  };
  const key = (event: KeyboardEvent) => {
    const by = event.key === 'ArrowDown' ? 1 : event.key === 'ArrowUp' ? -1 : 0;
    if (by) move((value) => Math.max(0, Math.min(found.length - 1, value + by)));
    else if (event.key === 'Enter') run(found[at]);
    else return;
    event.preventDefault();
  };
  return (
    <dialog class="palette" aria-label="Commands" {...dialog}>
      {open && (
        <>
          <input
            role="combobox"
            aria-expanded="true"
            aria-controls="commands"
            aria-activedescendant={found[at] ? `command-${at}` : undefined}
            aria-label="Command or run"
            placeholder="Go to a page or a run…"
            value={written}
            autofocus
            onInput={(event) => {
              write(event.currentTarget.value);
              move(0);
            }}
            onKeyDown={key}
          />
          <ul id="commands" role="listbox" aria-label="Commands" ref={list}>
            {found.map((command, index) => (
              <li key={command.name} id={`command-${index}`} role="option" aria-selected={index === at} onClick={() => run(command)}>
                <span class="clip">{oneLine(command.name)}</span>
                {command.hint && <span class="kbd">{command.hint}</span>}
              </li>
            ))}
            {!found.length && (
              <li role="option" aria-selected={false} aria-disabled="true" class="muted">
                Nothing of that name
              </li>
            )}
          </ul>
        </>
      )}
    </dialog>
  );
}

export function Help() {
  const open = help.value;
  const dialog = useDialog(open, () => (help.value = false));
  const seen = new Map<string, Key>();
  for (const each of held.value) seen.set(each.keys, each);
  return (
    <dialog aria-labelledby="help-title" {...dialog}>
      {open && (
        <div class="help">
          <div class="cardhead">
            <h2 id="help-title">Keys on this page</h2>
            <button class="btn" onClick={() => (help.value = false)}>
              Close
            </button>
          </div>
          <dl>
            {[...seen.values()].map((each) => (
              <>
                <dt key={each.keys}>
                  {(each.keys === 'mod+k' ? ['Ctrl', 'K'] : each.keys.split(' ')).map((part) => (
                    <span key={part} class="kbd">
                      {part}
                    </span>
                  ))}
                </dt>
                <dd>{each.does}</dd>
              </>
            ))}
          </dl>
        </div>
      )}
    </dialog>
  );
}
