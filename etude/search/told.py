"""What `etude index` did, as a person reads it.

Owns the words and no figure.
"""

from __future__ import annotations

from collections.abc import Sequence

from etude.extras import install_command
from etude.search.answer import named
from etude.search.sharing import Pushed
from etude.search.store import StoreStatus
from etude.search.syntax import cutter
from etude.search.workspace import Built, Found, WorkspaceStatus


def tell_built(built: Built) -> str:
    known = built.read - built.taken
    fetched = f"{built.fetched} came from the team's index, " if built.fetched else ""
    rows = [
        f"{built.workspace}: {built.files} files, {built.read} of them new or changed",
        f"of these {built.taken} hold something new and {known} what the store knew; {fetched}{built.embedded} pieces "
        "were embedded",
        *_long(built.too_long),
        f"the store is {_size(built.bytes)}",
    ]
    if not cutter():
        rows.append(f"files are cut by lines; {install_command('search')} brings grammars, which cut at definitions")
    return "\n".join(rows)


def _long(count: int) -> list[str]:
    return [f"{count} too long for a search by words; a grep reads them"] if count else []


def tell_pushed(pushed: Pushed) -> str:
    secret = f"; {pushed.secret} files with a secret in them were left out" if pushed.secret else ""
    return f"{pushed.workspace}: {pushed.files} contents, {_size(pushed.bytes)}, are at {pushed.name}{secret}"


def tell_status(status: WorkspaceStatus) -> str:
    commit = f" at commit {status.commit[:12]}" if status.commit else ""
    behind = [f"{status.stale} files are new or have changed"] if status.stale else []
    behind += [f"{status.unembedded} have no vectors of this embedder"] if status.unembedded else []
    to_do = f"{', '.join(behind)}: etude index build" if behind else "up to date"
    rows = [
        f"{status.workspace}: {status.indexed} of {status.files} files are indexed{commit}; {to_do}",
        *_long(status.too_long),
        tell_store(status.store),
        f"version: {status.version}",
    ]
    return "\n".join(rows)


def tell_found(found: Sequence[Found]) -> str:
    if not found:
        return "nothing found; try other words"
    return "\n\n".join(f"{named(each.path)}:{each.first}-{each.last}\n{each.text}" for each in found)


def tell_collected(before: StoreStatus, after: StoreStatus) -> str:
    went = f"{before.workspaces - after.workspaces} workspaces and {before.contents - after.contents} contents"
    return f"forgot {went}\n{tell_store(after)}"


def tell_store(store: StoreStatus) -> str:
    return (
        f"store: {store.path}, {_size(store.bytes)}, {store.contents} contents in {store.pieces} pieces, "
        f"{store.workspaces} workspaces"
    )


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"
