"""What `etude index` did, as a person reads it.

Owns the words and no figure.
"""

from __future__ import annotations

from collections.abc import Sequence

from etude.search.sharing import Pushed
from etude.search.store import StoreStatus
from etude.search.workspace import Built, Found, WorkspaceStatus


def tell_built(built: Built) -> str:
    known = built.read - built.taken
    long = f"; {built.too_long} too long to be indexed, a grep reads them" if built.too_long else ""
    fetched = f"{built.fetched} of them were fetched, " if built.fetched else ""
    return (
        f"{built.workspace}: {built.files} files, {built.read} read since they are new or have changed, of which "
        f"{built.taken} hold something new and {known} what the store knew{long}; {fetched}{built.embedded} pieces "
        "embedded\n"
        f"the store is {_size(built.bytes)}"
    )


def tell_pushed(pushed: Pushed) -> str:
    secret = f"; {pushed.secret} files with a secret in them were left out" if pushed.secret else ""
    return f"{pushed.workspace}: {pushed.files} contents, {_size(pushed.bytes)}, are at {pushed.name}{secret}"


def tell_status(status: WorkspaceStatus) -> str:
    commit = f" at commit {status.commit[:12]}" if status.commit else ""
    behind = f"{status.stale} files are new or have changed: etude index build" if status.stale else "up to date"
    return (
        f"{status.workspace}: {status.indexed} of {status.files} files are indexed{commit}; {behind}\n"
        f"{tell_store(status.store)}\nversion: {status.version}"
    )


def tell_found(found: Sequence[Found]) -> str:
    if not found:
        return "nothing found; try other words"
    return "\n\n".join(f"{each.path}:{each.first}-{each.last}\n{each.text}" for each in found)


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
