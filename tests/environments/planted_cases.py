"""Files that a hostile command plants, how it plants them, and the program of the user's that would obey each.

A case is run twice on the same project: planted from outside, where the program must obey it (or the case shows
nothing), and from inside the sandbox, where it must not. CANARY is a file that only an obeyed plant makes; EVIL is a
program that makes it. Both shells start in the project.
"""

# ruff: noqa: E501  (a shell's text is read best on one line)
from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Project = Literal[
    "plain", "bare git", "hookless", "none", "nested", "worktree", "other worktree", "submodule", "mercurial"
]
Way = Literal["command", "background", "write_file", "upload"]


@dataclass(frozen=True)
class Case:
    name: str
    plant: str
    """A shell's text; of a file tool, the path it writes, EVIL being the content, or the tar that this text leaves."""
    obeyed: str
    """What the user runs afterwards, outside."""
    project: Project = "plain"
    refused: str = ""
    """The paths that the guard must name, and no others: with another one the case would show another refusal."""
    given: str = ""
    """What the user did in the project before the agent came."""
    way: Way = "command"


COMMIT = "git commit -q --allow-empty -m x"
_FSMONITOR = "[core]\\n\\trepositoryformatversion = 0\\n\\tfsmonitor = EVIL\\n"
_CONFIG = f"printf '{_FSMONITOR}'"
_HOOK = "cp $PWD/evil"
_HOOKS = "mkdir -p .git/hooks"
_NESTED = "cd deps && git status"
_LINKED = "mkdir -p tools .git/hooks; printf '#!/bin/sh\\n. tools/more\\n' > tools/pre; chmod +x tools/pre; touch tools/more; "
_GIVEN_HOOK = "mkdir -p tools/d .git/hooks; printf '#!/bin/sh\\n' > tools/d/a; chmod +x tools/d/a; rm -f .git/hooks/pre-commit; cat > .git/hooks/pre-commit <<'END'\n#!/bin/sh\n{}\nEND\nchmod +x .git/hooks/pre-commit"
_IN_ENVRC = "mkdir -p tools env.d; touch env.d/a.sh; cat > .envrc <<'END'\n{}\nEND\n"
_PREPARED = f"mkdir -p x/objects x/refs && echo ref: refs/heads/main > x/HEAD && {_CONFIG} > x/config"
_WORKTREE = "\\tworktree = .\\n"
_BARE = f"mkdir -p d && cd d && printf '{_FSMONITOR}{_WORKTREE}' > config"
_HEAD = "echo ref: refs/heads/main > HEAD"
_IN_BARE = "cd d && git status"
_PYTHON = "import ctypes, os, sys; libc = ctypes.CDLL(None, use_errno=True);"
_PROMPT = (
    "bash --norc -c 'cd deps; . /usr/lib/git-core/git-sh-prompt; GIT_PS1_SHOWDIRTYSTATE=1 GIT_PS1_SHOWUNTRACKEDFILES=1; "
    'PS1=$(__git_ps1 "(%s)")\''
)
_DIRENV = "direnv export bash"
_IN_DIRENV = "bash --norc -c 'eval \"$(direnv export bash)\"; git diff'"
_FILTER = "echo y >> a.txt; git add a.txt"
_PRE_COMMIT = "repos: [{repo: local, hooks: [{id: x, name: x, entry: %s, language: system, always_run: true}]}]"
_REBASE = (
    "git checkout -q -b s && echo s > a.txt && git commit -qam s && git checkout -q main && echo m > a.txt && "
    "git commit -qam m && ! git rebase -q s 2> {}"
)
_VIM = "vim --not-a-term -c 'qa!' a.txt"
_VIMRC = "echo 'silent !touch CANARY'"
_PACKED = f"mkdir -p node_modules/p; {_VIMRC} > node_modules/p/.exrc"
_IN_LIB = f"cd lib; {_VIM}"
_FAR = "1/2/3/4/5/6/7/8/9/10/11/12"
_HG = "hg status; hg log"
_EXCHANGE = f"""python3 -c '{_PYTHON}
sys.exit(libc.renameat2(-100, b"NEW", -100, b"OLD", 2))'"""
_OPENAT2 = """python3 - <<'END'
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
how = (ctypes.c_uint64 * 3)(os.O_CREAT | os.O_WRONLY, 0o755, 0)
fd = libc.syscall(437, -100, b".git/hooks/pre-commit", how, 24)
if fd < 0:  # as the C library does without it
    fd = os.open(".git/hooks/pre-commit", os.O_CREAT | os.O_WRONLY, 0o755)
os.write(fd, open("evil", "rb").read())
END"""
_NAMELESS = """python3 - <<'END'
import ctypes, os
fd = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o755)
os.write(fd, open("evil", "rb").read())
ctypes.CDLL(None).linkat(-100, f"/proc/self/fd/{fd}".encode(), -100, b".git/hooks/pre-commit", 0x400)
END"""
_DIR_FD = """python3 - <<'END'
import os
d = os.open(".git", os.O_RDONLY)
fd = os.open("hooks/pre-commit", os.O_WRONLY | os.O_CREAT, 0o755, dir_fd=d)
os.write(fd, open("evil", "rb").read())
END"""
_REOPENED = """python3 - <<'END'
import os
fd = os.open("deps/.git/config", os.O_RDONLY)
with open(f"/proc/self/fd/{fd}", "a") as file:
    file.write("[core]\\n\\tfsmonitor = EVIL\\n")
END"""
_SWAPPED = """python3 - <<'END'
import ctypes, os, threading
libc = ctypes.CDLL(None)
names, done = [b"plain-file-1", b".git/hooks/x"], threading.Event()
path = ctypes.create_string_buffer(names[0], 64)

def swap():
    while not done.is_set():
        for name in names:
            ctypes.memmove(path, name, len(name) + 1)

threads = [threading.Thread(target=swap) for _ in range(2)]
[thread.start() for thread in threads]
for _ in range(4000):
    fd = libc.open(path, os.O_CREAT | os.O_WRONLY, 0o755)
    fd >= 0 and libc.close(fd)
    if os.path.exists(".git/hooks/x"):
        break
done.set()
if os.path.exists(".git/hooks/x"):
    os.rename(".git/hooks/x", ".git/hooks/pre-commit")
    open(".git/hooks/pre-commit", "w").write(open("evil").read())
END"""
_SOCKETS = f"""{_BARE} && {_HEAD} && python3 - <<'END'
import socket
for name in ("objects", "refs"):
    socket.socket(socket.AF_UNIX).bind(name)
END"""

CASES = (
    # hooks
    Case("a hook is written", "printf '#!/bin/sh\\ntouch CANARY\\n' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit", COMMIT, refused=".git/hooks/pre-commit"),
    Case("a hook is copied", f"{_HOOK} .git/hooks/post-checkout", "git checkout -q -b b", refused=".git/hooks/post-checkout"),
    Case("a hook is moved there", "cp evil x; mv x .git/hooks/prepare-commit-msg", COMMIT, refused=".git/hooks/prepare-commit-msg"),
    Case("a hook is linked", "ln evil .git/hooks/pre-commit", COMMIT, refused=".git/hooks/pre-commit"),
    Case("a hook is a symlink", "ln -s ../../evil .git/hooks/post-commit", COMMIT, refused=".git/hooks/post-commit"),
    Case("hooks are made where there are none", f"mkdir .git/hooks; {_HOOK} .git/hooks/pre-commit", COMMIT, "hookless", refused=".git/hooks"),
    Case("hooks are a prepared directory", "mkdir x; cp evil x/pre-commit; mv x .git/hooks", COMMIT, "hookless", refused=".git/hooks"),
    Case("hooks are a symlink", "mkdir x; cp evil x/pre-commit; ln -s ../x .git/hooks", COMMIT, "hookless", refused=".git/hooks"),
    Case("a sample is put to use", "cd .git/hooks; cp ../../evil pre-commit.sample; mv pre-commit.sample pre-commit", COMMIT, refused=".git/hooks/pre-commit.sample"),
    Case("a hook that was put to sleep", "chmod +x deps/.git/hooks/pre-commit", f"cd deps; {COMMIT}", "nested",
         given="cp evil deps/.git/hooks/pre-commit; chmod -x deps/.git/hooks/pre-commit", refused="deps/.git/hooks/pre-commit"),
    Case("and so by its descriptor", "python3 -c \"import os; os.fchmod(os.open('deps/.git/hooks/pre-commit', 0), 0o755)\"",
         f"cd deps; {COMMIT}", "nested", given="cp evil deps/.git/hooks/pre-commit; chmod -x deps/.git/hooks/pre-commit", refused="deps/.git/hooks/pre-commit"),
    Case("a hook by a name that leads there", "ln -s .git/hooks way; cp evil way/pre-commit", COMMIT, refused=".git/hooks/pre-commit"),
    Case("a hook by /proc", f"{_HOOK} /proc/self/cwd/.git/hooks/pre-commit", COMMIT, "hookless", given=_HOOKS, refused=".git/hooks/pre-commit"),
    Case("a hook from a directory's descriptor", _DIR_FD, COMMIT, "hookless", given=_HOOKS, refused=".git/hooks/pre-commit"),
    Case("a hook by openat2", _OPENAT2, COMMIT, "hookless", given=_HOOKS, refused=".git/hooks/pre-commit"),
    Case("a file without a name gets a hook's", _NAMELESS, COMMIT, "hookless", given=_HOOKS, refused=".git/hooks/pre-commit"),
    Case("a path that changes while it is read", _SWAPPED, COMMIT, "hookless", given=_HOOKS, refused=".git/hooks/x, .git/ho*"),
    Case("hooks where the config says", "cp evil tools/hooks/pre-commit", COMMIT,
         given="git config core.hooksPath tools/hooks; mkdir -p tools/hooks", refused="tools/hooks/pre-commit"),
    Case("and moved there", "mkdir -p x/hooks; cp evil x/hooks/pre-commit; mv x tools", COMMIT,
         given="git config core.hooksPath tools/hooks", refused="tools"),
    Case("hooks that are checked in", "cp evil .husky/pre-commit", COMMIT, given="mkdir .husky; git config core.hooksPath .husky", refused=".husky/pre-commit"),
    Case("a command that has ended plants later", f"(sleep 0.3; {_HOOK} .git/hooks/pre-commit; touch done) &", COMMIT, way="background", refused=".git/hooks/pre-commit"),
    # git's config
    Case("the config is set", "git config core.fsmonitor EVIL", "git status", refused=".git/config"),
    Case("the config grows", "printf '[core]\\n\\tfsmonitor = EVIL\\n' >> .git/config", "git diff", refused=".git/config"),
    Case("the config is replaced", f"{_CONFIG} > x; mv -f x .git/config", "git status", refused=".git/config"),
    Case("a worktree's config", "printf '[core]\\n\\tfsmonitor = EVIL\\n' > .git/config.worktree",
         "git status", given="git config core.repositoryformatversion 1; git config extensions.worktreeConfig true; rm -f .git/config.worktree", refused=".git/config.worktree"),
    Case("the config that the config includes", "printf '[core]\\n\\tfsmonitor = EVIL\\n' > .gitconfig", "git status",
         given="git config include.path ../.gitconfig", refused=".gitconfig"),
    Case("the program that the config names", "cp evil clean.sh; echo y >> a.txt", "git add a.txt",
         given="git config filter.f.clean ./clean.sh; echo '*.txt filter=f' > .gitattributes", refused="clean.sh"),
    Case("a common directory elsewhere", "echo ../x > .git/commondir", "git status", given=_PREPARED, refused=".git/commondir"),
    # a whole repository
    Case("git init where there is none", "git init -q; git config core.fsmonitor EVIL", "git status", "none", refused=".git"),
    Case("the same by hand", f"mkdir -p .git/objects .git/refs; cp x/HEAD .git; {_CONFIG} > .git/config", "git status", "none",
         given="mkdir x; echo ref: refs/heads/main > x/HEAD", refused=".git"),
    Case("a prepared directory becomes .git", "mv x .git", "git status", "none", given=_PREPARED, refused=".git"),
    Case("one exchanged for .git", _EXCHANGE.replace("NEW", "x").replace("OLD", ".git"), "git status", "bare git", given=_PREPARED, refused=".git"),
    Case("and .git for it", _EXCHANGE.replace("NEW", ".git").replace("OLD", "x"), "git status", "bare git", given=_PREPARED, refused=".git"),
    Case("one from elsewhere becomes .git", f"cd /tmp; rm -rf x; {_PREPARED}; cd - > /dev/null; mv /tmp/x .git", "git status", "none", refused=".git"),
    Case("one is copied", f"cd /tmp; rm -rf x; {_PREPARED}; cd - > /dev/null; cp -r /tmp/x .git 2> /dev/null", "git status", "none", refused=".git"),
    Case("one is unpacked", "tar xf z.tar", "git status", "none",
         given=f"{_PREPARED}; mkdir y; mv x y/.git; tar cf z.tar -C y .; rm -r y", refused=".git"),
    Case("a .git that is a file", "echo gitdir: ./x > .git", "git status", "none", given=_PREPARED, refused=".git"),
    Case("a .git that is a symlink", "ln -s x .git", "git status", "none", given=_PREPARED, refused=".git"),
    Case("a .git of git init --separate-git-dir", "git init -q --separate-git-dir store && git --git-dir store config core.fsmonitor EVIL",
         "git status", "none", refused=".git"),
    # nested ones
    Case("a nested repository", "git init -q deps && git -C deps config core.fsmonitor EVIL", _NESTED, refused="deps/.git"),
    Case("a nested one at a prompt", "git init -q deps && cd deps && git config core.fsmonitor EVIL && git add -A", _PROMPT, refused="deps/.git"),
    Case("a nested one, deep and ignored", "mkdir -p b/c/d/e && cd b/c/d/e && git init -q && git config core.fsmonitor EVIL",
         "cd b/c/d/e && git status", given="echo b > .gitignore", refused="b/c/d/e/.git"),
    Case("a clone", "git clone -q . deps && git -C deps config core.fsmonitor EVIL", _NESTED, refused="deps/.git"),
    Case("the config of a nested one that is there", "git -C deps config core.fsmonitor EVIL", _NESTED, "nested", refused="deps/.git/config"),
    Case("the same by another name of the file", "ln deps/.git/config x; printf '[core]\\n\\tfsmonitor = EVIL\\n' >> x", _NESTED, "nested", refused="deps/.git/config"),
    Case("the same by a descriptor for reading", _REOPENED, _NESTED, "nested", refused="deps/.git/config"),
    Case("the same moved away and back", f"mv deps/.git x; {_CONFIG} > x/config; mv x deps/.git", _NESTED, "nested", refused="deps/.git"),
    Case("a nested one that git status of the top enters",
         "git init -q deps && git -C deps -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && git -C deps config core.fsmonitor EVIL; "
         "git update-index --add --cacheinfo 160000,$(git -C deps rev-parse HEAD || git rev-parse HEAD),deps", "git status", refused="deps/.git"),
    # bare ones, which need no name
    Case("a bare repository", f"{_BARE} && mkdir objects refs && {_HEAD}", _IN_BARE, refused="d/HEAD"),
    Case("a bare one, HEAD first", f"{_BARE} && {_HEAD} && mkdir refs && mkdir objects", _IN_BARE, refused="d/objects"),
    Case("a bare one, put together", f"{_BARE} && {_HEAD} && mkdir refs x && mv x objects", _IN_BARE, refused="d/objects"),
    Case("a bare one of sockets", _SOCKETS, _IN_BARE, refused="d/refs"),
    Case("a bare one that borrows", f"mkdir -p y/objects y/refs && printf '{_FSMONITOR}[extensions]\\n\\tworktreeConfig = true\\n' > y/config && "
         f"mkdir -p d && cd d && printf '[core]\\n{_WORKTREE}' > config.worktree && {_HEAD} && echo ../y > commondir", _IN_BARE, refused="d/commondir"),
    Case("a bare one in a branch's directory", f"mkdir -p .git/refs/heads/d && cd .git/refs/heads && {_BARE} && mkdir objects refs && {_HEAD}",
         "cd .git/refs/heads/d && git status", refused=".git/refs/heads/d/HEAD"),
    # worktrees and submodules
    Case("hooks of the repository of a worktree", "d=$(git rev-parse --git-common-dir); mkdir -p $d/hooks; cp evil $d/hooks/pre-commit",
         COMMIT, "worktree", given="rm -rf ../main/.git/hooks", refused="hooks"),
    Case("a config of the worktree's own", "printf '[core]\\n\\tfsmonitor = EVIL\\n' > $(git rev-parse --git-dir)/config.worktree",
         "git status", "worktree", given="git config core.repositoryformatversion 1; git config extensions.worktreeConfig true", refused="worktrees/project/config.worktree"),
    Case("another worktree's config", "printf '[core]\\n\\tfsmonitor = EVIL\\n' > $(git rev-parse --git-common-dir)/worktrees/second/config.worktree",
         "cd ../second && git status", "other worktree",
         given="git config core.repositoryformatversion 1; git config extensions.worktreeConfig true", refused="worktrees/second/config.worktree"),
    Case("a submodule leads elsewhere", "rm -f sub/.git; echo gitdir: ../x > sub/.git", "git status", "submodule", given=_PREPARED, refused="sub/.git"),
    Case("a submodule's link is rewritten", "echo gitdir: ../x > sub/.git", "git status", "submodule", given=_PREPARED, refused="sub/.git"),
    Case("a submodule's config", "git -C sub config core.fsmonitor EVIL", "git status", "submodule", refused=".git/modules/sub/config"),
    # other version control
    Case("a Mercurial hook", "printf '[hooks]\\npre-status = EVIL\\n' >> .hg/hgrc", _HG, "mercurial", refused=".hg/hgrc"),
    Case("a nested Mercurial repository", "hg init deps && printf '[hooks]\\npre-status = EVIL\\n' > deps/.hg/hgrc", f"cd deps; {_HG}", refused="deps/.hg"),
    # what shells and editors read
    Case("direnv", "echo 'touch CANARY' > .envrc", _DIRENV, refused=".envrc"),
    Case("direnv further down", "mkdir -p b/c; echo 'touch CANARY' > b/c/.envrc", f"cd b/c; {_DIRENV}", refused="b/c/.envrc"),
    Case("direnv by a symlink", "echo 'touch CANARY' > b; ln -s b .envrc", _DIRENV, refused=".envrc"),
    Case("direnv where a link leads", "echo 'touch CANARY' > tools/env", _DIRENV, given="mkdir tools; touch tools/env; ln -s tools/env .envrc", refused="tools/env"),
    Case("vim", "echo 'silent !touch CANARY' > .vimrc", _VIM, refused=".vimrc"),
    Case("vim as ex", "echo 'silent !touch CANARY' > .exrc", _VIM, refused=".exrc"),
    Case("bash in a home", "echo 'touch CANARY' > .bashrc", "HOME=$PWD bash -ic true", refused=".bashrc"),
    Case("a login shell in a home", "echo 'touch CANARY' > .profile", "HOME=$PWD bash -lc true", refused=".profile"),
    Case("git in a home", "printf '[core]\\n\\tfsmonitor = EVIL\\n' > .gitconfig", "HOME=$PWD git status", refused=".gitconfig"),
    # what the listed files name
    Case("a script in a filter's shell", "cp evil tools/clean.sh", _FILTER, refused="tools/clean.sh",
         given="mkdir tools; git config filter.f.clean \"sh -c 'sh tools/clean.sh'\"; echo '*.txt filter=f' > .gitattributes"),
    Case("a program behind another's end", "cp evil clean", _FILTER, refused="clean",
         given="cp a.txt clean; chmod +x clean; git config filter.f.clean 'true&&./clean'; echo '*.txt filter=f' > .gitattributes"),
    Case("a module that python looks for", "echo \"open('CANARY', 'w')\" > tidy.py", _FILTER, refused="tidy.py",
         given="git config filter.f.clean 'python3 -m tidy'; echo '*.txt filter=f' > .gitattributes"),
    Case("a script that a hook runs", "cp evil tools/lint.sh", COMMIT, refused="tools/lint.sh",
         given="mkdir tools .git/hooks -p; touch tools/lint.sh; printf '#!/bin/sh\\ncd tools && sh tools/lint.sh || sh lint.sh\\nsh tools/lint.sh\\ntrue' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit"),
    Case("a script that a hook's script runs, absent", "cp evil tools/more", COMMIT, refused="tools/more",
         given="mkdir tools .git/hooks -p; echo '[ -x $PWD/tools/more ] && $PWD/tools/more; true' > tools/lint.sh; "
         "printf '#!/bin/sh\\n. tools/lint.sh\\n' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit"),
    Case("a file that a hook's program is given", "echo 'touch CANARY' > ci/rc", COMMIT, refused="ci/rc",
         given="mkdir ci .git/hooks -p; touch ci/rc; printf '#!/bin/sh\\nbash --rcfile ci/rc -ic true\\ntrue' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit"),
    Case("the file that pre-commit reads", f"printf '{_PRE_COMMIT}' EVIL > .pre-commit-config.yaml; git add .pre-commit-config.yaml", COMMIT,
         refused=".pre-commit-config.yaml",
         given=f"printf '{_PRE_COMMIT}' true > .pre-commit-config.yaml && git add -A && git commit -qm p && pre-commit install"),
    Case("what direnv sources", "echo 'touch CANARY' > tools/env.sh", _DIRENV, refused="tools/env.sh",
         given="mkdir tools; touch tools/env.sh; echo 'source_env tools/env.sh' > .envrc"),
    Case("what it would source", "mkdir -p b; echo 'touch CANARY' > b/.local", f"cd b; {_DIRENV}", refused="b/.local",
         given="mkdir b; echo 'source_env_if_exists .local' > b/.envrc"),
    Case("variables that direnv takes over", "echo GIT_EXTERNAL_DIFF=EVIL > vars; echo y >> a.txt", _IN_DIRENV, refused="vars",
         given="touch vars; echo 'dotenv vars' > .envrc"),
    Case("a program that direnv puts before", "cp evil bin/git", _IN_DIRENV, refused="bin/git",
         given="mkdir bin; echo 'PATH_add bin' > .envrc"),
    Case("and by its directory", "mkdir x; cp evil x/git; mv x bin", _IN_DIRENV, refused="bin", given="echo 'PATH_add bin' > .envrc"),
    Case("and by a link", "mkdir x; cp evil x/git; ln -s x bin", _IN_DIRENV, refused="bin", given="echo 'PATH_add bin' > .envrc"),
    Case("the steps of a rebase that the user is in", "echo exec EVIL >> .git/rebase-merge/git-rebase-todo",
         "git add a.txt; GIT_EDITOR=true git rebase --continue", refused=".git/rebase-merge/git-rebase-todo", given=_REBASE.replace("{}", "/dev/null")),
    Case("the same, put in its place", "cp -r .git/rebase-merge x; echo exec EVIL >> x/git-rebase-todo; rm -rf .git/rebase-merge; mv x .git/rebase-merge",
         "git add a.txt; GIT_EDITOR=true git rebase --continue", refused=".git/rebase-merge", given=_REBASE.replace("{}", "/dev/null")),
    # the ways there: links, and what shells make of words
    Case("where a hook's link leads", "cp evil tools/pre", COMMIT, refused="tools/pre", given=f"{_LINKED}ln -sf ../../tools/pre .git/hooks/pre-commit"),
    Case("what the hook runs there", "cp evil tools/more", COMMIT, refused="tools/more", given=f"{_LINKED}ln -sf ../../tools/pre .git/hooks/pre-commit"),
    Case("a link on the way of a hook's link", "rm b; ln -s evil b", COMMIT, refused="b", given=f"{_LINKED}ln -s tools/pre b; ln -sf ../../b .git/hooks/pre-commit"),
    Case("a directory's link on the way", "rm b; mkdir b; cp evil b/pre", COMMIT, refused="b/pre",
         given=f"{_LINKED}ln -s tools b; ln -s b c; ln -sf ../../c/pre .git/hooks/pre-commit"),
    Case("where a link in the config's hooks leads", "cp evil tools/pre", COMMIT, refused="tools/pre",
         given=f"{_LINKED}git config core.hooksPath .hk; mkdir .hk; ln -s ../tools/pre .hk/pre-commit"),
    Case("where a link in husky's hooks leads", "cp evil tools/pre", COMMIT, refused="tools/pre",
         given=f"{_LINKED}git config core.hooksPath .husky/_; mkdir -p .husky/_; ln -s ../tools/pre .husky/pre-commit; ln -s ../pre-commit .husky/_/pre-commit"),
    Case("a hook's second name", "cat evil > tools/pre", COMMIT, refused="tools/pre", given=f"{_LINKED}ln -f tools/pre .git/hooks/pre-commit"),
    Case("the second name of what it runs", "cat evil > other", COMMIT, refused="other", given=f"{_LINKED}ln tools/more other; ln -sf ../../tools/pre .git/hooks/pre-commit"),
    Case("vim where a link further down leads", "echo 'silent !touch CANARY' > tools/rc", f"cd pk; {_VIM}", refused="tools/rc",
         given="mkdir pk tools; touch tools/rc; ln -s ../tools/rc pk/.exrc"),
    Case("git in a home whose config is links", "printf '[core]\\n\\tfsmonitor = EVIL\\n' > tools/gc", "HOME=$PWD XDG_CONFIG_HOME=$PWD/.config git status", refused="tools/gc",
         given="mkdir -p tools .config/git; touch tools/gc; ln -s ../../tools/gc .config/git/config"),
    Case("and as a whole", "printf '[core]\\n\\tfsmonitor = EVIL\\n' > conf/git/config", "HOME=$PWD XDG_CONFIG_HOME=$PWD/.config git status", refused="conf/git/config",
         given="mkdir -p conf/git; touch conf/git/config; ln -s conf .config"),
    Case("a hook that runs all of a directory", "cp evil tools/d/b", COMMIT, refused="tools/d/b", given=_GIVEN_HOOK.format('for h in tools/d/*; do [ -x "$h" ] && "$h"; done')),
    Case("and so by a variable", "cp evil tools/d/b", COMMIT, refused="tools/d/b", given=_GIVEN_HOOK.format('DIR="$(dirname "$0")/../../tools/d"\nfor h in "$DIR"/*; do "$h"; done')),
    Case("and so by run-parts", "cp evil tools/d/b", COMMIT, refused="tools/d/b", given=_GIVEN_HOOK.format("run-parts --regex=. tools/d")),
    Case("a hook that goes there", "cp evil tools/d/a", COMMIT, refused="tools/d/a", given=_GIVEN_HOOK.format("cd tools && cd d && ./a")),
    Case("a hook with a variable", "cp evil tools/d/a", COMMIT, refused="tools/d/a", given=_GIVEN_HOOK.format("DIR=tools; SUB=$DIR/d; sh ${SUB}/a")),
    Case("a hook by its own directory", "cp evil tools/d/a", COMMIT, refused="tools/d/a", given=_GIVEN_HOOK.format('. "$(dirname "$0")/../../tools/d/a"')),
    Case("direnv's path by a shell's words", "cp evil tools/git", _IN_DIRENV, refused="tools/git", given=_IN_ENVRC.format('export PATH="$(pwd)/tools:$PATH"')),
    Case("direnv's path by git's", "cp evil tools/git", _IN_DIRENV, refused="tools/git", given=_IN_ENVRC.format('PATH_add "$(git rev-parse --show-toplevel)/tools"')),
    Case("direnv's path by backticks", "cp evil tools/git", _IN_DIRENV, refused="tools/git", given=_IN_ENVRC.format('PATH="`pwd`/tools:$PATH"')),
    Case("direnv's path of the top", "cp evil git", _IN_DIRENV, refused="git", given=_IN_ENVRC.format("PATH_add .")),
    Case("of the top by a command", "cp evil git", _IN_DIRENV, refused="git", given=_IN_ENVRC.format('PATH_add "$(pwd)"')),
    Case("of the top by a variable", "cp evil git", _IN_DIRENV, refused="git", given=_IN_ENVRC.format('export PATH="${PWD}:$PATH"')),
    Case("direnv's second path", "cp evil tools/git", _IN_DIRENV, refused="tools/git", given=_IN_ENVRC.format("PATH_add env.d tools")),
    Case("direnv's path where another file lies", "mkdir env.d/bin; cp evil env.d/bin/git", _IN_DIRENV, refused="env.d/bin/git",
         given=f"{_IN_ENVRC.format('source_env env.d/a.sh')}echo 'PATH_add bin' > env.d/a.sh"),
    Case("a path that is relative", "mkdir -p b; cp evil b/git", "cd b; bash --norc -c 'eval \"$(direnv export bash)\"; git diff'", refused="b/git",
         given=_IN_ENVRC.format("export PATH=.:$PATH")),
    Case("direnv's variables without a name", "echo GIT_EXTERNAL_DIFF=EVIL > .env; echo y >> a.txt", _IN_DIRENV, refused=".env", given=_IN_ENVRC.format("dotenv_if_exists")),
    Case("a layout of direnv's", "mkdir -p .direnv/go/bin; cp evil .direnv/go/bin/git", _IN_DIRENV, refused=".direnv/go/bin/git, .direnv/go/bin", given=_IN_ENVRC.format("layout go")),
    Case("all that direnv sources", "echo 'touch CANARY' > env.d/b.sh", _DIRENV, refused="env.d/b.sh", given=_IN_ENVRC.format('for f in env.d/*.sh; do . "$f"; done')),
    Case("what direnv sources elsewhere", "echo 'touch CANARY' > env.d/a.sh", _DIRENV, refused="env.d/a.sh", given=_IN_ENVRC.format("cd env.d && . ./a.sh && cd ..")),
    Case("the program of a remote", "cp evil tools/pack", "git fetch", refused="tools/pack",
         given="mkdir tools; cp a.txt tools/pack; chmod +x tools/pack; git config remote.origin.url .; git config remote.origin.uploadpack ./tools/pack"),
    # further down, where people work too
    Case("vim further down", "mkdir -p b/c; echo 'silent !touch CANARY' > b/c/.exrc", f"cd b/c; {_VIM}", refused="b/c/.exrc"),
    Case("a debugger further down", "mkdir b; echo 'import os; os.system(\"touch CANARY\")' > b/.pdbrc",
         "cd b; echo 1 > x.py; python3 -m pdb x.py", refused="b/.pdbrc"),
    # links that lead among packages, where such files are let be because nobody works there
    Case("a link to a package's directory", f"{_PACKED}; ln -s node_modules/p lib", _IN_LIB, refused="lib"),
    Case("a link to one that comes later", f"ln -s node_modules/p lib; {_PACKED}", _IN_LIB, refused="lib"),
    Case("one that is moved out", f"{_PACKED}; ln -s node_modules/p node_modules/l; mv node_modules/l lib", _IN_LIB, refused="lib"),
    Case("another name of one", f"{_PACKED}; ln -s node_modules/p node_modules/l; ln -P node_modules/l lib", _IN_LIB, refused="lib"),
    Case("a link to a file that becomes a directory", f"mkdir -p node_modules; touch node_modules/p; ln -s node_modules/p lib; rm node_modules/p; {_PACKED}",
         _IN_LIB, refused="node_modules/p/.exrc"),
    Case("a link that is there already", _PACKED, _IN_LIB, refused="node_modules/p/.exrc", given="ln -s node_modules/p lib"),
    Case("and by way of another", _PACKED, _IN_LIB, refused="node_modules/p/.exrc", given="mkdir node_modules; ln -s ../node_modules/p node_modules/q; ln -s node_modules/q lib"),
    Case("and prepared beside it", f"{_PACKED}; mv node_modules/p node_modules/r; ln -s r node_modules/p", _IN_LIB, refused="node_modules/p*",
         given="mkdir node_modules; ln -s node_modules/p lib"),
    Case("and moved there", f"mkdir -p node_modules/r; {_VIMRC} > node_modules/r/.exrc; mv node_modules/r node_modules/p", _IN_LIB, refused="node_modules/p/.exrc",
         given="mkdir node_modules; ln -s node_modules/p lib"),
    Case("where a link of a package leads that somebody works in", f"mkdir -p b; {_VIMRC} > b/rc", _IN_LIB, refused="b/rc",
         given="mkdir -p node_modules/p b; touch b/rc; ln -s ../../b/rc node_modules/p/.exrc; ln -s node_modules/p lib"),
    Case("vim where a link among builds leads", f"{_VIMRC} > b", f"cd target; {_VIM}", refused="b", given="mkdir target; touch b; ln -s ../b target/.exrc"),
    Case("vim where a link very far down leads", f"{_VIMRC} > b", f"cd {_FAR}; {_VIM}", refused="b", given=f"mkdir -p {_FAR}; touch b; ln -s $PWD/b {_FAR}/.exrc"),
    Case("the second name of direnv's among packages", "echo 'touch CANARY' > node_modules/x", _DIRENV, refused="node_modules/x", given="mkdir node_modules; touch .envrc; ln .envrc node_modules/x"),
    Case("the second name of a hook among git's logs", "cat evil > .git/logs/x", COMMIT, refused=".git/logs/x",
         given="mkdir -p .git/hooks; printf '#!/bin/sh\n' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit; ln .git/hooks/pre-commit .git/logs/x"),
    Case("what the hook of a submodule runs", "cp evil sub/check", f"cd sub; {COMMIT}", "submodule", refused="sub/check",
         given="touch sub/check; chmod +x sub/check; cd .git/modules/sub/hooks; printf '#!/bin/sh\n./check\n' > pre-commit; chmod +x pre-commit"),
    # by file tools
    Case("the file tool writes a hook", ".git/hooks/pre-commit", f"chmod +x .git/hooks/pre-commit; {COMMIT}", "hookless", way="write_file", refused=".git/hooks/pre-commit"),
    Case("an archive holds a repository", f"{_PREPARED}; mkdir y; mv x y/.git; tar cf - -C y .", "git status", "none", way="upload", refused=".git"),
    Case("an archive holds a hook", "mkdir -p y/.git/hooks; cp evil y/.git/hooks/pre-commit; tar cf - -C y .", COMMIT, "hookless", way="upload", refused=".git/hooks"),
)  # fmt: skip

ANOTHER_AGENT = Case(
    "an extension of another agent",
    'mkdir -p .pi/extensions; printf \'require("fs").writeFileSync("CANARY", ""); export default () => {};\' > .pi/extensions/a.ts',
    "pi --help",
    refused=".pi",
)
"""It is obeyed by npm's @mariozechner/pi-coding-agent, which is large: this case is not among the others."""
