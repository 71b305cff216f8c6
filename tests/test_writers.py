"""Every module that writes files is known: as a row of the tables in tests/prove, or with a reason why it has none."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "etude"
WRITES = {
    "write_text", "write_bytes", "write_whole", "write_new", "write_private", "append_whole", "write_events", "mkdir",
    "makedirs", "mkdtemp", "mkstemp", "TemporaryDirectory", "TemporaryFile", "NamedTemporaryFile", "symlink_to",
    "hardlink_to", "symlink", "copyfile", "copyfileobj", "copytree", "copy2", "extractall", "ftruncate",
    "pwrite", "sendfile", "save_file", "savez", "savez_compressed", "Journal", "FileHistory",
    "LocalStore", "rename", "overwrite", "copy_tree", "save_checkpoint", "save_tokenizer", "posix_fallocate", "mkfifo",
    "mknod", "writev", "memmap", "FileHandler", "RotatingFileHandler",
}  # fmt: skip
OF_MODULE = {("os", "write"), ("os", "rename"), ("os", "replace"), ("os", "link"), ("shutil", "copy"),
             ("shutil", "move"), ("os", "truncate"), ("torch", "save"),
             ("np", "save"), ("sqlite3", "connect")}  # fmt: skip
FLAGS = {"O_CREAT", "O_WRONLY", "O_APPEND", "O_TRUNC", "O_TMPFILE"}


def writes(tree: ast.AST) -> bool:
    return any(isinstance(node, ast.Call) and _writes(node) for node in ast.walk(tree))


def _writes(call: ast.Call) -> bool:
    function = call.func
    name = getattr(function, "attr", None) or getattr(function, "id", "")
    on = getattr(getattr(function, "value", None), "id", "")
    if name == "touch":
        return not call.args  # of a path; what takes a word is another's
    if name not in ("open", "fdopen"):
        return name in WRITES or (on, name) in OF_MODULE
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    named = {getattr(node, "attr", "") for each in given for node in ast.walk(each)}
    modes = [each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return bool(named & FLAGS) or any(set(mode) <= set("rwaxbt+") and set(mode) & set("wax+") for mode in modes)


SANDBOX = "a live sandbox's own, gone with it: a start that fails is told of as any other, and its place is removed"
SCRATCH = "scratch of one call, in the directory for temporary files"
INSIDE = "runs in a sandbox, whose disk is the policy's"
MEMORY = "an archive in memory"
KERNEL = "files of the kernel, on no disk"
BUILD = "a tree of an image that is built: tests/environments/images; what is kept of it is `images`"
TRIED = {
    "bench/html.py": "a page of behaviour",
    "bench/results.py": "a benchmark's results",
    "cli/sessions.py": "a session's export",
    "engine/foreign/handover.py": "weights for another program's engine",
    "environments/accounts.py": "a server's events",
    "environments/build.py": "the guest program",
    "environments/images/store.py": "images",
    "environments/journal.py": "a server's journal",
    "environments/launcher.py": "a namespace backend's place",
    "environments/node.py": "a server's journal",
    "environments/store.py": "a namespace backend's place",
    "environments/toolchain.py": "a namespace backend's place",
    "environments/vm/kernel.py": "a guest's kernel",
    "durable.py": "a run's reports and summaries",
    "harness/events.py": "a benchmark's results",
    "harness/fleet/worktrees.py": "an agent's worktree",
    "harness/journal.py": "a session's log",
    "harness/permissions/store.py": "answers to keep: permissions",
    "harness/shadow.py": "undo: snapshots of a workspace",
    "harness/store.py": "a session's secret",
    "host/beneath.py": "an agent's worktree",
    "models/checkpoint.py": "a model",
    "models/generation.py": "a model",
    "models/peft.py": "an adapter",
    "models/tokenizer.py": "a tokenizer",
    "product/fleet/run_records.py": "a session's log",
    "product/setup/written.py": "an agent's configuration",
    "rewards/mining/generate.py": "a run's reports and summaries",
    "rewards/mining/journal.py": "mined tasks' journal",
    "rewards/mining/mine.py": "a run's reports and summaries",
    "rollouts/control.py": "a model",
    "rollouts/ledger.py": "a run's ledger",
    "rollouts/lines.py": "a run's metrics",
    "rollouts/run.py": "a run's reports and summaries",
    "rollouts/stats.py": "a run's metrics",
    "rollouts/trajectory_store.py": "a run's trajectories",
    "serving/token.py": "a server's token",
    "studio/report.py": "a run's page",
    "tasks/harbor.py": "tasks",
    "tasks/mined/environment.py": "environments of mined tasks",
    "tasks/packed.py": "a bundle of tasks",
    "made_by.py": "a mid-training and its log",
    "trainer/base_model.py": "a mid-training and its log",
    "trainer/checkpoint.py": "a run's checkpoints",
    "trainer/continued.py": "a mid-training and its log",
    "trainer/corpus/store.py": "a corpus",
    "trainer/documents.py": "recorded sessions",
    "trainer/midtraining.py": "a mid-training and its log",
    "trainer/lessons.py": "a mid-training and its log",
    "trainer/on_policy.py": "a mid-training and its log",
    "trainer/taught.py": "a session's log",
    "trainer/trained.py": "a model",
    "weights/cache.py": "a relay's cache",
    "weights/signing.py": "signing keys",
    "weights/opening.py": "the weight store",
}
"""By which row of tests/prove a module's way of writing is tried."""
NOT_TRIED = {
    "archive/chunks.py": "a verdict waits for it, and a full disk is said: tests/archive/test_durability.py",
    "archive/export.py": "what the archive has, at the user's word: exported again",
    "archive/index.py": "made anew from the chunks: tests/archive/test_durability.py",
    "archive/notes.py": "a note that cannot be kept is refused to whoever wrote it",
    "bench/acp.py": SCRATCH,
    "bench/sinks/beside.py": "what a sink's process says: tests/bench/test_sinks.py",
    "bench/sinks/export.py": "which figures were told, that the run has in its own files: told again",
    "cli/train.py": "the run's directory, for who looks at it: the run's claim makes it all the same",
    "engine/server/shape.py": MEMORY,
    "environments/cgroups.py": KERNEL,
    "environments/container/command.py": SCRATCH,
    "environments/container/trees.py": MEMORY,
    "environments/firecracker/machine.py": SANDBOX,
    "environments/freezer.py": KERNEL,
    "environments/images/archives.py": BUILD,
    "environments/images/build.py": BUILD,
    "environments/images/confined.py": BUILD,
    "environments/images/copying.py": BUILD,
    "environments/images/oci.py": BUILD,
    "environments/task_archives.py": MEMORY,
    "environments/local/plain.py": "the user's own files, at the model's word: a tool that fails says so to the model",
    "environments/local/view.py": "an empty directory of a user's repository, for a sandbox to show",
    "environments/local/workspace.py": SCRATCH,
    "environments/images/mounts.py": SANDBOX,
    "environments/qemu/machine.py": SANDBOX,
    "environments/doctor.py": SCRATCH,
    "environments/namespace_probe.py": SCRATCH,
    "environments/images/root.py": SANDBOX,
    "environments/trees.py": SANDBOX,
    "environments/vm/machine.py": SANDBOX,
    "environments/vm/probe.py": SCRATCH,
    "environments/vm/ram.py": SANDBOX,
    "harness/fleet/merges.py": SCRATCH,
    "harness/fleet/repository.py": SCRATCH,
    "harness/mcp/server.py": SCRATCH,
    "host/home.py": "empty directories of the cache, so that they can be taken away from commands",
    "host/repository.py": SCRATCH,
    "host/scratch.py": SCRATCH,
    "host/sockets.py": "a note beside a token: without it clients are told of the token and do not find it",
    "models/shards.py": "a checkpoint beside its place, moved there when it is whole: tests/models/test_transfer.py",
    "models/transfer.py": "a checkpoint beside its place, moved there when it is whole: tests/models/test_transfer.py",
    "product/hooks.py": SCRATCH,
    "product/acp/stdio.py": "the standard output, on no disk",
    "product/terminal/typing.py": "a line that was typed is lost where it cannot be kept: test_starved_session.py",
    "rewards/mining/adopt.py": SCRATCH,
    "rewards/mining/calls.py": "tasks and a journal as rewards/mining/generate.py writes them, by the same functions",
    "rewards/callcard.py": "makes a file of this repository, for who works on it",
    "rewards/callset.py": "makes a file of this repository, for who works on it",
    "rewards/realset.py": "makes a file of this repository, for who works on it",
    "rollouts/machines/far.py": "`etude cluster up` says which machine refused a file, and is given again",
    "rollouts/machines/joining.py": "whether every machine sees one file: a run that cannot write it does not begin",
    "studio/mirrored.py": "a cache of a store: what cannot be kept is told of, and asked for again",
    "rollouts/claim.py": "the recipe of a run that has not begun: where it cannot be written, nothing was made yet",
    "rollouts/own_ray.py": "a token of a run that has not begun: where it cannot be written, Ray is not started",
    "rollouts/plan/planner.py": SCRATCH,
    "search/database.py": "a cache, by SQLite: what it cannot keep is in memory; tests/search/test_store.py",
    "tasks/inside/databases.py": INSIDE,
    "tasks/inside/explore.py": INSIDE,
    "tasks/inside/guard.py": INSIDE,
    "tasks/inside/pytests.py": INSIDE,
    "tasks/inside/record.py": INSIDE,
    "tasks/mined/clone.py": "a copy of a repository elsewhere, moved to its place when it is whole",
    "tasks/scrub.py": SCRATCH,
    "tasks/patches.py": SCRATCH,
    "trainer/embedder/making.py": "the same command makes it again, and nothing else is in its directory",
    "trainer/embedder/pairs.py": SCRATCH,
    "trainer/mesh/trained.py": "a model, as one rank writes it: trainer/trained.py; shards: tests/trainer/test_mesh.py",
}
"""Why a module has no row."""


def test_every_module_that_writes_is_known():
    found = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if writes(ast.parse(path.read_text()))}
    assert found == TRIED.keys() | NOT_TRIED.keys() and not TRIED.keys() & NOT_TRIED.keys()
