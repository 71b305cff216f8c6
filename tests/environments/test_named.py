"""What the user's control files name is guarded with them, and no more than that: work goes on beside it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from guarded_workspace import within
from planted_cases import COMMIT, Case
from structlog.testing import capture_logs
from test_planted import Place, place, plant_inside
from users_git import git

from etude.environments.local.named import referenced_paths
from etude.environments.local.workspace import ConfinedWorkspace
from etude.errors import ConfigError


@pytest.fixture
def held(outer: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    made = place(outer, Case("", "", "", given="rm -rf .git/hooks; mkdir -p .git/hooks .venv/bin src tools"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    monkeypatch.setenv("HOME", str(outer / "home"))
    return made


async def refused(workspace: ConfinedWorkspace, command: str) -> str:
    done = await workspace.exec(command)
    return done.output.decode().partition("only the user may write it: ")[2].partition(". Below")[0]


def hook(held: Place, text: str) -> None:
    path = held.project / ".git" / "hooks" / "pre-commit"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_a_program_of_an_activated_environment_replaces_none_outside(
    held: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's shell finds `.venv/bin/git` first. What has no other's name is the environment's own."""
    shutil.copy("/bin/true", held.project / ".venv" / "bin" / "cat")
    monkeypatch.setenv("PATH", f"{held.project}/.venv/bin:{held.project}/none/bin:bin:/usr/local/bin:/usr/bin:/bin")

    async def scenario(workspace: ConfinedWorkspace) -> None:
        for way in ("cp evil {}", "ln -s ../../evil {}", "ln evil {}", "cp evil x; mv x {}", "mkfifo {}"):
            assert await refused(workspace, way.replace("{}", ".venv/bin/git")) == ".venv/bin/git", way
        assert await refused(workspace, "mkdir -p y/bin && cp evil y/bin/git") == "y/bin/git", "a relative one of PATH"
        done = await workspace.exec("cp evil .venv/bin/my-tool && rm .venv/bin/cat && cp evil .venv/bin/cat")
        assert done.exit_code == 0, done.output.decode()
        assert await refused(workspace, "mkdir z && mv z none") == "none"

    within(held.project, scenario)
    held.run(f"PATH={held.project}/.venv/bin:$PATH; git status; cd y; PATH=bin:$PATH; git status")
    assert not held.canary.exists()
    held.run(f"PATH={held.project}/.venv/bin:$PATH; my-tool")
    assert held.canary.exists(), "it is run by who names it"


@pytest.mark.parametrize(
    "words", ["PATH_add bin", 'PATH_add "$PWD/bin"', 'export PATH="$PWD/bin:$PATH"', "path_add PATH bin"]
)
def test_only_the_directory_that_is_searched_is_held(held: Place, words: str) -> None:
    """A virtual environment has a `bin` too, and everybody makes one."""
    (held.project / ".envrc").write_text(f"{words}\n")

    async def scenario(workspace: ConfinedWorkspace) -> None:
        done = await workspace.exec(
            "python3 -m venv --without-pip e && e/bin/python -c 1 && mkdir bin && cp evil bin/my-tool"
        )
        assert done.exit_code == 0, done.output.decode()
        assert await refused(workspace, "cp evil bin/git") == "bin/git"

    within(held.project, scenario)


def test_the_top_of_a_repository_in_path_is_held(held: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{held.project}:/usr/local/bin:/usr/bin:/bin")

    async def scenario(workspace: ConfinedWorkspace) -> None:
        assert await refused(workspace, "cp evil git") == "git"
        assert (await workspace.exec("cp evil my-tool; cp evil src/git")).exit_code == 0

    within(held.project, scenario)
    held.run(f"PATH={held.project}:$PATH; git status")
    assert not held.canary.exists()


@pytest.mark.parametrize("way", ["the workspace by a link", "the environment by a link"])
def test_no_link_hides_where_a_shell_searches(held: Place, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    (held.root / "link").symlink_to(held.project)
    (held.project / "venvs" / "a" / "bin").mkdir(parents=True)
    (held.project / "env").symlink_to("venvs/a")
    where = held.root / "link" / ".venv" / "bin" if way.startswith("the workspace") else held.project / "env" / "bin"
    real = str(where.resolve().relative_to(held.project))
    monkeypatch.setenv("PATH", f"{where}:/usr/local/bin:/usr/bin:/bin")

    async def scenario(workspace: ConfinedWorkspace) -> None:
        assert await refused(workspace, f"cp evil {real}/git") == f"{real}/git"

    within(held.project, scenario)
    held.run(f"PATH={where}:$PATH; git status")
    assert not held.canary.exists()


@pytest.mark.proof(14)
def test_no_file_of_the_repository_uses_up_what_is_read_of_hooks(held: Place) -> None:
    """What is not read is said."""
    (held.project / ".husky").mkdir()
    many = " ".join(f"./tools/s/{number}.sh" for number in range(1100))
    for crowded in (".mcp.json", ".envrc", ".husky/pre-commit"):
        (held.project / crowded).write_text(many)
    for number in range(300):
        (held.project / "tools" / f"{number}.sh").write_text(f". tools/{number + 1}.sh\n")
    (held.project / "mise.toml").write_text("run = 'sh tools/0.sh'")
    (held.project / "tools" / "check.sh").write_text("true\n")
    hook(held, "sh tools/check.sh")
    with capture_logs() as logs:
        named = referenced_paths(held.project)
    assert "tools/check.sh" in named.files and "tools/s/9.sh" in named.files and len(named.files) < 5000
    assert [each for each in logs if each["event"] == "guard_reads_no_further"]

    async def scenario(workspace: ConfinedWorkspace) -> None:
        assert await refused(workspace, "cp evil tools/check.sh") == "tools/check.sh"

    within(held.project, scenario)


def test_what_editors_are_given_by_links_is_guarded_where_it_lies(held: Place) -> None:
    (held.project / "tools" / "t.json").write_text("{}")
    (held.project / ".vscode").mkdir()
    (held.project / ".vscode" / "tasks.json").symlink_to("../tools/t.json")
    (held.project / "src" / "pk").mkdir()
    (held.project / "src" / "pk" / ".vscode").symlink_to("../../shared")
    (held.project / "shared").mkdir()
    (held.project / "shared" / "launch.json").symlink_to("../src/launch")

    async def scenario(workspace: ConfinedWorkspace) -> None:
        for path in ("tools/t.json", "shared/tasks.json", "src/launch"):
            assert await refused(workspace, f"cp evil {path}") == path
        assert not await refused(workspace, "touch tools/other src/other")

    within(held.project, scenario)


def test_what_a_home_links_to_is_guarded_where_it_lies(held: Place) -> None:
    dots = held.project / "bash"
    dots.mkdir()
    (dots / "bashrc").write_text("true\n")
    (held.root / "home" / ".bashrc").symlink_to(dots / "bashrc")
    (held.root / "home" / ".config" / "nvim").symlink_to(held.project / "nvim")

    async def scenario(workspace: ConfinedWorkspace) -> None:
        assert await refused(workspace, held.filled("echo 'touch CANARY' > bash/bashrc")) == "bash/bashrc"
        assert await refused(workspace, "mkdir nvim && touch nvim/init.lua") == "nvim"
        assert not await refused(workspace, "touch bash/other")

    within(held.project, scenario)
    held.run("bash -ic true")
    assert not held.canary.exists()


def test_hooks_and_envs_of_nested_repositories_are_read_too(held: Place) -> None:
    deps = held.project / "packages" / "deps"
    (deps / "tools").mkdir(parents=True)
    git(deps, "init", "-q")
    (deps / ".git" / "hooks").mkdir(exist_ok=True)
    (deps / ".git" / "hooks" / "pre-commit").write_text("#!/bin/sh\nsh tools/lint.sh\n")
    (deps / ".git" / "hooks" / "pre-commit").chmod(0o755)

    async def scenario(workspace: ConfinedWorkspace) -> None:
        case = Case("", "cp evil packages/deps/tools/lint.sh", "", refused="packages/deps/tools/lint.sh")
        await plant_inside(held, case, workspace)

    within(held.project, scenario)
    held.run(COMMIT, deps)
    assert not held.canary.exists()


def test_a_workspace_that_is_a_part_of_a_repository_holds_what_its_hooks_run(held: Place) -> None:
    held.run("rm -rf .git; cd ..; git init -q; mkdir -p .git/hooks")
    (hook := held.root / ".git" / "hooks" / "pre-commit").write_text("#!/bin/sh\ncd project\n./tools/check\n")
    hook.chmod(0o755)

    async def scenario(workspace: ConfinedWorkspace) -> None:
        assert await refused(workspace, "cp evil tools/check") == "tools/check"

    within(held.project, scenario)


def test_links_to_files_of_packages_are_made_as_ever(held: Place) -> None:
    """`npm install -g` and nodeenv put such links where shells search; packages are linked to projects too."""
    (held.project / "bin").mkdir()
    (held.project / "lib" / "node_modules" / "p").mkdir(parents=True)
    (held.project / "lib" / "node_modules" / "p" / "old.js").write_text("")
    (held.project / "bin" / "old").symlink_to("../lib/node_modules/p/old.js")

    async def scenario(workspace: ConfinedWorkspace) -> None:
        for command in (
            "cd lib/node_modules/p && touch cli.js && ln -s ../lib/node_modules/p/cli.js ../../../bin/p",
            "cd bin && ln -s ../lib/node_modules/p/cli.js q && mv p r",
            "cd bin && rm old && ln -s ../lib/node_modules/p/old.js old && mkdir ../lib/node_modules/p/.vscode",
            "mkdir -p src/a node_modules; ln -s ../src/a node_modules/a && ln -s ../../node_modules src/a/node_modules",
        ):
            done = await workspace.exec(command)
            assert done.exit_code == 0, done.output.decode()

    within(held.project, scenario)


def test_what_is_merely_mentioned_is_not_guarded(held: Place) -> None:
    """A hook that lints the sources does not make them the user's alone."""
    (held.project / "src" / "main.py").write_text("1\n")
    (held.project / "tools" / "lint.py").write_text("import main\n")
    hook(held, "# see docs/hooks.md and tools/old.sh\nruff check src src/main.py README.md\npython3 tools/lint.py src")
    named = referenced_paths(held.project)
    assert {"tools/lint.py"} <= set(named.files) and not {"src", "src/main.py", "docs/hooks.md"} & set(named.files)

    async def scenario(workspace: ConfinedWorkspace) -> None:
        done = await workspace.exec("echo 2 > src/main.py; mkdir docs; touch docs/hooks.md README.md tools/old.sh")
        assert done.exit_code == 0 and b"only the user" not in done.output, done.output.decode()

    within(held.project, scenario)


def test_what_is_named_can_be_given_up_by_its_name(held: Place) -> None:
    hook(held, "sh tools/lint.sh")

    async def scenario(workspace: ConfinedWorkspace) -> None:
        assert not await refused(workspace, "touch tools/lint.sh")

    within(held.project, scenario, unguarded=("tools/lint.sh",))
    with pytest.raises(ConfigError, match=r"unguarded: 'tools/other.sh' is not listed"):
        within(held.project, scenario, unguarded=("tools/other.sh",))


def test_files_without_end_or_without_sense_name_nothing(held: Place) -> None:
    """A control file is anybody's text: links to devices, cycles, pipes and noise are read to an end."""
    (held.project / ".envrc").write_text(
        "source_env .envrc\nsource_env b/.envrc\n. /dev/zero\n\0'\"$(((\n" + "a/b " * 9000
    )
    (held.project / "b").mkdir()
    (held.project / "b" / ".envrc").symlink_to("/dev/zero")
    os.mkfifo(held.project / "mise.toml")
    named = referenced_paths(held.project)
    assert "a/b" in named.files and len(named.files) < 1000


@pytest.mark.parametrize(
    ("path", "text", "obeyed"),
    [
        ("", 'eval "$(cat tools/s)"', COMMIT),
        ("", "eval `cat tools/s`", COMMIT),
        ("", "bash -c 'eval \"$(<tools/s)\"'", COMMIT),
        ("", "bash <<END\n. <(cat tools/s)\nEND", COMMIT),
        ("", 'sh -c "$(cat README tools/s)"', COMMIT),
        ("", "cat tools/s | sh", COMMIT),
        ("", "find tools -name s -exec sh {} \\;", COMMIT),
        ("", "x=$(find tools -exec sh {} \\;)", COMMIT),
        ("", "find -L ./tools -type f -exec true \\; -exec bash -e '{}' ';'", COMMIT),
        ("", "find tools -type f -execdir chmod +x {} + -exec {} \\;", COMMIT),
        ("x = !sh tools/s", "", "git x"),
        ('x = "!f() { . tools/s; }; f"', "", "git x"),
    ],
)
def test_what_is_run_by_way_of_another_is_guarded(held: Place, path: str, text: str, obeyed: str) -> None:
    (held.project / "README").write_text("true\n")
    (held.project / "tools" / "s").write_text("true\n")
    hook(held, text)
    with (held.project / ".git" / "config").open("a") as config:
        config.write(f"[alias]\n\t{path}\n" if path else "")

    async def scenario(workspace: ConfinedWorkspace) -> None:
        assert await refused(workspace, "cp evil tools/s") in ("tools", "tools/s")

    within(held.project, scenario)
    held.run(obeyed)
    assert not held.canary.exists()
    (held.project / "tools" / "s").write_text(held.filled("touch CANARY\n"))
    (held.project / "tools" / "s").chmod(0o755)
    held.run(obeyed)
    assert held.canary.exists(), "the case shows nothing"


def test_what_only_takes_part_is_not_guarded(held: Place) -> None:
    (held.project / "src" / "main.py").write_text("1\n")
    hook(held, "find src -name '*.py' -exec grep -l x {} +\nfind src -exec cat {} ';' | wc -l\nx=$(cat src/main.py)")
    with (held.project / ".git" / "config").open("a") as config:
        config.write("[alias]\n\tl = log src/main.py\n")
    assert not {"src", "src/main.py"} & set(referenced_paths(held.project).files)


def test_what_an_editor_runs_when_a_directory_is_opened_is_guarded_with_what_it_names(held: Place) -> None:
    """Tasks that are run by name are code: who runs them names them."""
    for name in ("open.sh", "built.sh", "init.sh", "up.sh"):
        (held.project / "tools" / name).write_text("true\n")
    app = held.project / "packages" / "app"
    for directory in (held.project / ".vscode", app / ".vscode", app / ".devcontainer" / "py", app / "tools"):
        directory.mkdir(parents=True)
    (app / "tools" / "x.sh").write_text("true\n")
    on_opening = '"runOptions": {"runOn": "folderOpen"}'
    (held.project / ".vscode" / "tasks.json").write_text('{"tasks": [{"command": "sh tools/built.sh"}]}')
    (app / ".vscode" / "tasks.json").write_text(f'{{"tasks": [{{"command": "./tools/x.sh", {on_opening}}}]}}')
    (held.project / ".devcontainer.json").write_text(
        '{"initializeCommand": ["sh", "${localWorkspaceFolder}/tools/init.sh"]}'
    )
    (app / ".devcontainer" / "devcontainer.json").write_text('{"postCreateCommand": "sh tools/up.sh"}')
    (app / ".devcontainer" / "py" / "devcontainer.json").write_text('{"initializeCommand": "../../tools/open.sh"}')
    files = set(referenced_paths(held.project).files)
    assert {"packages/app/tools/x.sh", "tools/init.sh", "tools/open.sh"} <= files, files
    assert not {"tools/built.sh", "tools/up.sh"} & files
