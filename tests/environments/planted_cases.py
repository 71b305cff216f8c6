"""Files that a hostile command plants, how it plants them, and the program of the user's that would obey each.

A case is run twice on the same project: planted from outside, where the program must obey it (or the case shows
nothing), and from inside the sandbox, where it must not. CANARY is a file that only an obeyed plant makes; EVIL is a
program that makes it. Both shells start in the project.
"""

# ruff: noqa: E501  (a shell's text is read best on one line)
from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Project = Literal["plain", "hookless", "none", "nested", "worktree", "other worktree", "submodule", "mercurial"]
Way = Literal["command", "background", "write_file", "upload"]


@dataclass(frozen=True)
class Case:
    name: str
    plant: str
    """A shell's text; of a file tool, the path it writes, EVIL being the content, or the tar that this text leaves."""
    obeyed: str
    """What the user runs afterwards, outside."""
    project: Project = "plain"
    given: str = ""
    """What the user did in the project before the agent came."""
    way: Way = "command"


COMMIT = "git commit -q --allow-empty -m x"
_FSMONITOR = "[core]\\n\\trepositoryformatversion = 0\\n\\tfsmonitor = EVIL\\n"
_CONFIG = f"printf '{_FSMONITOR}'"
_HOOK = "cp $PWD/evil"
_NESTED = "cd deps && git status"
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
_VIM = "vim --not-a-term -c 'qa!' a.txt"
_HG = "hg status; hg log"
_EXCHANGE = f"""{_PREPARED}; mkdir keep; python3 -c '{_PYTHON}
sys.exit(libc.renameat2(-100, b"x", -100, b".git", 2))' || mv x .git"""
_OPENAT2 = """python3 - <<'END'
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
how = (ctypes.c_uint64 * 3)(os.O_CREAT | os.O_WRONLY, 0o755, 0)
fd = libc.syscall(437, -100, b".git/hooks/pre-commit", how, 24)
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
os.makedirs(".git/hooks", exist_ok=True)
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
    Case("a hook is written", "printf '#!/bin/sh\\ntouch CANARY\\n' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit", COMMIT),
    Case("a hook is copied", f"{_HOOK} .git/hooks/post-checkout", "git checkout -q -b b"),
    Case("a hook is moved there", "cp evil x; mv x .git/hooks/prepare-commit-msg", COMMIT),
    Case("a hook is linked", "ln evil .git/hooks/pre-commit", COMMIT),
    Case("a hook is a symlink", "ln -s ../../evil .git/hooks/post-commit", COMMIT),
    Case("hooks are made where there are none", f"mkdir .git/hooks; {_HOOK} .git/hooks/pre-commit", COMMIT, "hookless"),
    Case("hooks are a prepared directory", "mkdir x; cp evil x/pre-commit; mv x .git/hooks", COMMIT, "hookless"),
    Case("hooks are a symlink", "mkdir x; cp evil x/pre-commit; ln -s ../x .git/hooks", COMMIT, "hookless"),
    Case("a sample is put to use", "cd .git/hooks; cp ../../evil pre-commit.sample; mv pre-commit.sample pre-commit", COMMIT),
    Case("a hook that was put to sleep", "chmod +x deps/.git/hooks/pre-commit", f"cd deps; {COMMIT}", "nested",
         given="cp evil deps/.git/hooks/pre-commit; chmod -x deps/.git/hooks/pre-commit"),
    Case("and so by its descriptor", "python3 -c \"import os; os.fchmod(os.open('deps/.git/hooks/pre-commit', 0), 0o755)\"",
         f"cd deps; {COMMIT}", "nested", given="cp evil deps/.git/hooks/pre-commit; chmod -x deps/.git/hooks/pre-commit"),
    Case("a hook by a name that leads there", "ln -s .git/hooks way; cp evil way/pre-commit", COMMIT),
    Case("a hook by /proc", f"mkdir .git/hooks; {_HOOK} /proc/self/cwd/.git/hooks/pre-commit", COMMIT, "hookless"),
    Case("a hook from a directory's descriptor", _DIR_FD, COMMIT, "hookless"),
    Case("a hook by openat2", f"mkdir -p .git/hooks; {_OPENAT2}", COMMIT, "hookless"),
    Case("a file without a name gets a hook's", f"mkdir .git/hooks; {_NAMELESS}", COMMIT, "hookless"),
    Case("a path that changes while it is read", f"mkdir .git/hooks; {_SWAPPED}", COMMIT, "hookless"),
    Case("hooks where the config says", "mkdir -p tools/hooks; cp evil tools/hooks/pre-commit", COMMIT,
         given="git config core.hooksPath tools/hooks"),
    Case("and moved there", "mkdir -p x/hooks; cp evil x/hooks/pre-commit; mv x tools", COMMIT,
         given="git config core.hooksPath tools/hooks"),
    Case("hooks that are checked in", "cp evil .husky/pre-commit", COMMIT, given="mkdir .husky; git config core.hooksPath .husky"),
    Case("a command that has ended plants later", f"(sleep 0.3; {_HOOK} .git/hooks/pre-commit; touch done) &", COMMIT, way="background"),
    # git's config
    Case("the config is set", "git config core.fsmonitor EVIL", "git status"),
    Case("the config grows", "printf '[core]\\n\\tfsmonitor = EVIL\\n' >> .git/config", "git diff"),
    Case("the config is replaced", f"{_CONFIG} > x; mv -f x .git/config", "git status"),
    Case("a worktree's config", "git config --worktree core.fsmonitor EVIL || printf '[core]\\n\\tfsmonitor = EVIL\\n' > .git/config.worktree",
         "git status", given="git config core.repositoryformatversion 1; git config extensions.worktreeConfig true; rm -f .git/config.worktree"),
    Case("the config that the config includes", "printf '[core]\\n\\tfsmonitor = EVIL\\n' > .gitconfig", "git status",
         given="git config include.path ../.gitconfig"),
    Case("the program that the config names", "cp evil clean.sh; echo y >> a.txt", "git add a.txt",
         given="git config filter.f.clean ./clean.sh; echo '*.txt filter=f' > .gitattributes"),
    Case("a common directory elsewhere", f"{_PREPARED}; echo ../x > .git/commondir", "git status"),
    # a whole repository
    Case("git init where there is none", "git init -q; git config core.fsmonitor EVIL", "git status", "none"),
    Case("the same by hand", f"mkdir -p .git/objects .git/refs; cp x/HEAD .git; {_CONFIG} > .git/config", "git status", "none",
         given="mkdir x; echo ref: refs/heads/main > x/HEAD"),
    Case("a prepared directory becomes .git", f"{_PREPARED}; mv x .git", "git status", "none"),
    Case("one exchanged for .git", _EXCHANGE, "git status", "none"),
    Case("one from elsewhere becomes .git", f"cd /tmp; rm -rf x; {_PREPARED}; cd - > /dev/null; mv /tmp/x .git", "git status", "none"),
    Case("one is copied", f"cd /tmp; rm -rf x; {_PREPARED}; cd - > /dev/null; cp -r /tmp/x .git", "git status", "none"),
    Case("one is unpacked", f"{_PREPARED}; mkdir y; mv x y/.git; tar cf z.tar -C y . && tar xf z.tar", "git status", "none"),
    Case("a .git that is a file", f"{_PREPARED}; echo gitdir: ./x > .git", "git status", "none"),
    Case("a .git that is a symlink", f"{_PREPARED}; ln -s x .git", "git status", "none"),
    Case("a .git of git init --separate-git-dir", "git init -q --separate-git-dir store; git --git-dir store config core.fsmonitor EVIL",
         "git status", "none"),
    # nested ones
    Case("a nested repository", "git init -q deps; git -C deps config core.fsmonitor EVIL", _NESTED),
    Case("a nested one at a prompt", "git init -q deps; cd deps; git config core.fsmonitor EVIL; git add -A", _PROMPT),
    Case("a nested one, deep and ignored", "mkdir -p b/c/d/e; cd b/c/d/e; git init -q; git config core.fsmonitor EVIL",
         "cd b/c/d/e && git status", given="echo b > .gitignore"),
    Case("a clone", "git clone -q . deps; git -C deps config core.fsmonitor EVIL", _NESTED),
    Case("the config of a nested one that is there", "git -C deps config core.fsmonitor EVIL", _NESTED, "nested"),
    Case("the same by another name of the file", "ln deps/.git/config x; printf '[core]\\n\\tfsmonitor = EVIL\\n' >> x", _NESTED, "nested"),
    Case("the same by a descriptor for reading", _REOPENED, _NESTED, "nested"),
    Case("the same moved away and back", f"mv deps/.git x; {_CONFIG} > x/config; mv x deps/.git", _NESTED, "nested"),
    Case("a nested one that git status of the top enters",
         "git init -q deps; git -C deps -c user.name=a -c user.email=a@b commit -q --allow-empty -m x; git -C deps config core.fsmonitor EVIL; "
         "git update-index --add --cacheinfo 160000,$(git -C deps rev-parse HEAD || git rev-parse HEAD),deps", "git status"),
    # bare ones, which need no name
    Case("a bare repository", f"{_BARE} && mkdir objects refs && {_HEAD}", _IN_BARE),
    Case("a bare one, HEAD first", f"{_BARE} && {_HEAD} && mkdir refs && mkdir objects", _IN_BARE),
    Case("a bare one, put together", f"{_BARE} && {_HEAD} && mkdir refs x && mv x objects", _IN_BARE),
    Case("a bare one of sockets", _SOCKETS, _IN_BARE),
    Case("a bare one that borrows", f"mkdir -p y/objects y/refs && printf '{_FSMONITOR}[extensions]\\n\\tworktreeConfig = true\\n' > y/config && "
         f"mkdir -p d && cd d && printf '[core]\\n{_WORKTREE}' > config.worktree && {_HEAD} && echo ../y > commondir", _IN_BARE),
    Case("a bare one in a branch's directory", f"mkdir -p .git/refs/heads/d && cd .git/refs/heads && {_BARE} && mkdir objects refs && {_HEAD}",
         "cd .git/refs/heads/d && git status"),
    # worktrees and submodules
    Case("hooks of the repository of a worktree", "d=$(git rev-parse --git-common-dir); mkdir -p $d/hooks; cp evil $d/hooks/pre-commit",
         COMMIT, "worktree", given="rm -rf ../main/.git/hooks"),
    Case("a config of the worktree's own", "printf '[core]\\n\\tfsmonitor = EVIL\\n' > $(git rev-parse --git-dir)/config.worktree",
         "git status", "worktree", given="git config core.repositoryformatversion 1; git config extensions.worktreeConfig true"),
    Case("another worktree's config", "printf '[core]\\n\\tfsmonitor = EVIL\\n' > $(git rev-parse --git-common-dir)/worktrees/second/config.worktree",
         "cd ../second && git status", "other worktree",
         given="git config core.repositoryformatversion 1; git config extensions.worktreeConfig true"),
    Case("a submodule leads elsewhere", f"{_PREPARED}; rm -f sub/.git; echo gitdir: ../x > sub/.git", "git status", "submodule"),
    Case("a submodule's link is rewritten", f"{_PREPARED}; echo gitdir: ../x > sub/.git", "git status", "submodule"),
    Case("a submodule's config", "git -C sub config core.fsmonitor EVIL", "git status", "submodule"),
    # other version control
    Case("a Mercurial hook", "printf '[hooks]\\npre-status = EVIL\\n' >> .hg/hgrc", _HG, "mercurial"),
    Case("a nested Mercurial repository", "hg init deps; printf '[hooks]\\npre-status = EVIL\\n' > deps/.hg/hgrc", f"cd deps; {_HG}"),
    # what shells and editors read
    Case("direnv", "echo 'touch CANARY' > .envrc", _DIRENV),
    Case("direnv further down", "mkdir -p b/c; echo 'touch CANARY' > b/c/.envrc", f"cd b/c; {_DIRENV}"),
    Case("direnv by a symlink", "echo 'touch CANARY' > b; ln -s b .envrc", _DIRENV),
    Case("direnv where a link leads", "echo 'touch CANARY' > tools/env", _DIRENV, given="mkdir tools; touch tools/env; ln -s tools/env .envrc"),
    Case("vim", "echo 'silent !touch CANARY' > .vimrc", _VIM),
    Case("vim as ex", "echo 'silent !touch CANARY' > .exrc", _VIM),
    Case("bash in a home", "echo 'touch CANARY' > .bashrc", "HOME=$PWD bash -ic true"),
    Case("a login shell in a home", "echo 'touch CANARY' > .profile", "HOME=$PWD bash -lc true"),
    Case("git in a home", "printf '[core]\\n\\tfsmonitor = EVIL\\n' > .gitconfig", "HOME=$PWD git status"),
    # by file tools
    Case("the file tool writes a hook", ".git/hooks/pre-commit", f"chmod +x .git/hooks/pre-commit; {COMMIT}", "hookless", way="write_file"),
    Case("an archive holds a repository", f"{_PREPARED}; mkdir y; mv x y/.git; tar cf - -C y .", "git status", "none", way="upload"),
    Case("an archive holds a hook", "mkdir -p y/.git/hooks; cp evil y/.git/hooks/pre-commit; tar cf - -C y .", COMMIT, "hookless", way="upload"),
)  # fmt: skip
