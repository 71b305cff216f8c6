"""What is denied to read stays closed, by whatever words, where nothing is hidden from the shells.

So the rules alone are tested. What the sandbox hides is in tests/environments/test_outside.py, what real shells open in
test_shell_oracle.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import permissions
from denied_reads.trial import Trial

from etude.harness.permissions import Judge, PermissionConfig, WorkspacePaths

REFUSED = (
    # by patterns and variables, which is how these rules were got round
    "cat ~/.codex/*", "cat $HOME/.codex/auth.json", "cat /etc/shad*", "cat .en*", "cat .[e]nv", "cat .?nv",
    "cat */*/key", "cat .*", "cat .*/home/.codex/*", 'cat "$HOME"/.codex/auth.json', "X=.env; cat $X",
    "X=.e; Y=nv; cat $X$Y", "for f in .e*; do cat \"$f\"; done", "for f in $X; do cat $f; done", "cat {.env,README.md}",
    "export X={README.md,.env}; cat $X", "declare X={a..c,.env}; cat $X", "readonly X=.{x,env}; cat $X",
    "cat .{env,x}", "cat $X", "cat ${X:-.env}", "X=; : ${X:=.env}; cat $X", "X=README.md; X+=.env; cat $X",
    "cat $(echo .env)", "cat `echo .env`", "declare -n N=X; X=.env; cat $N", "declare -l L=.ENV; cat $L",
    "read X <<< .env; cat $X", "printf -v X .env; cat $X", "set -- .env; cat $1", "f() { cat $1; }; f .env",
    ": .env; cat $_", "X=.env sh -c 'cat $X'", "sh -c 'cat $0' .env", "cat ~root/x", "cat ~+/.env", "cat $'\\x2eenv'",
    'cat "$(< list)"', "cat $PWD/.env",
    # by other names of the same file
    "cat hard", "cat hard-key", "cat link-env", "cat link-chain", "cat src/link.txt", "cat link-codex/auth.json",
    "cat link-etc/shadow", "cat '~'/.codex/auth.json", "cat /proc/self/cwd/.env", "cat /proc/self/root/etc/shadow",
    "cat link-cwd/.env", "cat link-root/etc/shadow", "cat //etc/shadow", "cat /workspace/../etc/shadow",
    "cat src/../.env", "cat link-out/vault/token", "cat /dev/fd/../cwd/.env", "cat /proc/$$/cwd/.env",
    # from another directory, as often as a loop or a function goes there
    "cd infra/secrets && cat key", "cd infra; cat secrets/key", "for i in 1 2; do cat key; cd infra/secrets; done",
    "for i in 1 2; do cat shadow; cd /etc; done", "f() { cat key; }; cd infra/secrets; f", "cd $X && cat key",
    "trap 'cat key' EXIT; cd infra/secrets", "env -C infra/secrets cat key", "pushd infra/secrets; cat key",
    "for i in 1 2 3; do cd ..; done; cat etc/shadow", "find infra -maxdepth 0 -execdir cat infra/secrets/key ';'",
    # behind options and in lists of files
    "grep -f .env README.md", "grep -f.env README.md", "grep -vf.env README.md", "grep --file=.env x",
    "xargs -a .env echo", "wc --files0-from=list0", "wc --files0=list0", "sort --files0-from=list0",
    "du --files0-from list0", "md5sum -c sums", "sha256sum --check sums", "file -f list", "cat list | xargs cat",
    "xargs cat < list", "xargs -a list cat", "strings @.env", "cat $(<list)",
    "while read f; do cat \"$f\"; done < list", "diff --from-file=.env README.md", "date -f .env", "cd odd && cat *",
    "cd opt && grep a *", "cd lists && wc -*",
    "for f in odd/*; do cat $f; done", "cd odd && grep a *", "git diff --no-index README.md .env",
    "git show HEAD:infra/secrets/key", "git blame --contents .env README.md", "git grep a", "git diff",
    "git grep a -- infra",
    # in the languages of programs
    "sed -n 'r .env' README.md", "sed R.env README.md", "sed -f .env README.md", "sed 's/a/b/w o' README.md",
    "sed 1e README.md", "awk '{getline l < \".env\"; print l}' README.md",
    "awk 'BEGIN{ARGV[1]=\".env\";ARGC=2}{print}' x", "awk 'BEGIN{system(\"cat .env\")}'",
    "awk 'BEGIN{SYMTAB[\"AR\" \"GV\"][1]=\".e\" \"nv\"; SYMTAB[\"AR\" \"GC\"]=2}1'",
    "awk '{print > \"o\"}' README.md", "awk -f .env README.md", "jq -n 'import \"./x\" as $x; $x'",
    "jq -n --rawfile a .env '$a'", "jq -L . . package.json", "sort -o o README.md",
    "sort --compress-program=./x README.md", "uniq README.md o", "xxd README.md o", "xxd *", "rg --pre ./x a",
    "rg -z a", "tree -o x", "find . -fprintf x y", "find . -fls x", "find -files0-from list0", "git diff --outpu=x",
    "git grep -O a", "git grep -nO./x a", "git grep --open=./x a", "git log --show-signature", "git branch x",
    "git tag x", "git config a.b c", "git stash", "git remote add x y", "git reflog expire --all",
    "diff -l README.md src/a.txt", "date -s 1", "env -C . ls",
    # by all that lies below
    "grep -r a .", "grep -ra", "rg a", "find .", "ls -R", "diff -r . src", "du .", "find . -exec cat {} +",
    "find src -name '*.txt' -exec cat {} +", "git status",
    "grep -rn a src in[xf]r*", "find in* -exec cat {} +", "for d in src infra; do grep -r a $d; done", "du -a in*",
    # behind an option that takes a word, which is then neither the pattern nor where the walk starts
    "cd src && rg -A 3 a ../infra", "cd src && grep -rA3 a ..", "cd src && grep -r -C 2 a ../infra",
    "cd src && rg -e a ../infra", "cd src && grep -rea ..", "cd src && rg -g '*' a ..", "cd src && grep -rn a -- ..",
    "cd src && grep -r --regexp=a ../infra", "cd src && grep -r --reg=a ../infra", "cd src && grep -r -5 a ../infra",
    "cd src && ls -Rw3 ..", "cd src && ls -R -w 3 ..", "cd src && du -hd1 ../infra", "cd src && tree -aL 2 ..",
    "cd src && find -P ../infra -name key", "cd src && find -O2 .. -maxdepth 3", "cd src && find -- .. -maxdepth 3",
    "cd src && find -D tree ..", "cd src && rg --files ../infra", "grep -r --context 3 README.md",
    "grep -rn --max-count 3 README.md", "grep -r --exclude x README.md", "grep --recursive --label x README.md",
    "grep --directories recurse README.md", "rg --glob a README.md", "rg --type py README.md", "rg -e README.md",
    "rg --color never README.md", "rg --ignore-file a README.md", "ls -R --ignore README.md", "du --exclude README.md",
    "du --time-style README.md", "cd src && grep -r $'a' -A 3 ..", "X='a ..'; cd src && grep -rn $X engine.py",
    "X=infra; grep -r a $X", "wc -l /proc/$$/cwd/infra/*/key", "cat /proc/*/cwd/.env", "cat /proc/sel[f]/cwd/.en*",
    # wherever a shell opens a file
    "echo $(<.env)", "echo \"$(< .env)\"", "cat < .env", "cat < .e*", "cat <<< $(cat .env)", "f() { cat; } < .env; f",
    "case $(cat .env) in *) ;; esac", "export A=$(cat .env)", "[ -n \"$(cat .env)\" ]", "echo infra/*/k*",
    "echo infra/*/k$X", "[ $X ]", "test $X 'a[0]'", "cat <(cat .env)", "exec 3< .env; cat <&3", "read x < .env",
    "mapfile x < .env",
    # where a dash reads commands and words, and bash a test; and where bash makes a list
    "date -f2> o",
    "[[ x == ../vault/* ]]", "[[ x =~ infra/secrets/k.* ]]", "[[ -f ../vault/* ]]", "[[ x == $X ]]", "X=(../vault/*)",
    "declare -a X=(README.md infra/secrets/*)",
    # by git, whether it tracks them or not, and whether anybody said --no-index
    "git grep --untracked a", "git grep --untr a", "git grep --no-index a docs", "git ls-files -o --eol",
    "git ls-files -o --exclude-per-directory=own", "cd .git && git diff ../src ../docs",
    "git -C .git diff ../src ../docs", "git diff --no-index src docs", "git add -p", "git stash -u",
    "git hash-object --stdin-paths < list",
    # by names that a loop goes through, with something joined to them
    "for f in odd/*; do cat $f{; done", "sh -c 'for f in odd/*; do cat $f#; done'", "for f in odd/*; do cat $f/x; done",
    'for f in odd/*; do X="$f#"; cat $X; done', "for f in odd/*; do for g in $f.x; do cat $g; done; done",
    'for f in od*; do for g in "$f"/*; do cat x$g; done; done',
    # by a pattern that matches nothing, and so stands for itself
    'for f in "zz .env"*; do cat $f; done', 'for f in "zz infra/secrets/key"?; do cat $f; done',
    'for f in "zz ../home/.codex/auth.json"*; do cat $f; done', 'for f in "zz ../vault/"*; do ls $f; done',
    "for f in zz\\ .env*; do cat $f; done", 'for f in "zz .env"*; do X=$f; done; cat $X',
    'for f in src/"zz .env"*; do cat x$f; done', 'for f in "zz -r . "*; do grep secret $f; done',
    'for f in "zz README.md -o src/a.txt"*; do sort $f; done',
    # by a file that the line makes first
    "> 'a .env'; for f in a*; do cat $f; done", ": > 'zz .env'; for f in z*; do cat x$f; done",
    "echo x > 'p .env'; for f in ./p*; do wc -l $f; done", "echo '!.env' > .rgignore; rg secret",
    # by names of another directory than the word's
    "cd odd; for f in a*; do cat /workspace/$f; done", "cd odd; for f in a*; do X=/workspace/x$f; cat $X; done",
    "cd odd; for f in a*; do cd ..; cat $f; done",
    # by git from the top of its repository, wherever it was started
    "cd src && git blame -S infra/secrets/key README.md", "git -C src blame -S infra/secrets/key README.md",
    "cd src && git blame -S .env README.md", "cd src && git ls-files -X infra/secrets/key",
    "cd src && git blame --ignore-revs-file infra/secrets/key README.md", "cd src && git -C . log -O infra/secrets/key",
    # behind a `cd` that is certain, as far as anything is
    "cd infra && cd secrets && cat key", "cd src && cd .. && cat docs/o*", "cd link-out && cd .. && cat docs/o*",
    "cd() { :; }; cd src && cat docs/own", "cd infra && (cd secrets) && cat secrets/key", "cd no && ls; cat docs/own",
    "cd infra && env -C secrets ls && cat secrets/key", "cd infra && eval 'cd secrets' && cat key",
    "cd src && nice cd .. && cat ../docs/own", "cd no || cat docs/own",
    # where a name becomes an option, or a variable rules what follows
    "> -f.env; grep a *", "read PATH < list; ls", "printf -v PATH x; ls", "GLOBIGNORE=x; cat *",
    "RIPGREP_CONFIG_PATH=x rg a", "zsh -c 'cat README.md'", "unset PATH; ls", "unset -v PATH; ls", "unset HOME; ls ~/x",
    "printf -vPATH x; ls", "read -aPATH <<< x; ls", "read -raPATH <<< x; ls", "ls() { local PATH; head; }; ls",
    "ls() { typeset -x PATH; head; }; ls", "X=README.md; read -aX <<< .env; cat $X", "X=x; printf -vX .env; cat $X",
    "unset IFS; ls", "date 010100002001", "date -u 010100002001", "date -u $X", "X=010100002001; date $X",
    # by a word that names a list, however it is written
    "X=@list; strings $X", "X=@list; strings \"$X\"", "strings @lis{t,u}", "strings {@list,x}", "strings *",
    # in an expansion that the grammar does not see
    'echo "$ $(cat .env)"', 'echo "a$ `cat .env`"', "cat <<E\n $(cat .env)\nE", "cat <<E\na\n\t$(cat .env)\nE",
    "cat <<-E\n\t$(cat .env)\n\tE", "cat <<E && ls\n\t$(cat .env)\nE", "echo \"${X:-'$(cat .env)'}\"",
    "echo \"${X+a'`cat .env`'}\"", 'echo `echo "\\$(cat .env)"`', 'echo `echo "\\`cat .env\\`"`',
    "cat <<E\n$[ $(cat .env) ]\nE", "git log --help",
    # behind a here-document that the grammar thinks goes on
    "cat <<E\n$\nE\n(cat .env)\nE", "cat <<E\n$\nE\ncat .env\nE", "cat <<-E\n\t$\n\tE\ncat .env\nE",
    "cat <<'E'\n$\nE\ncat .env\nE", "cat <<E\nx$\nE\ncat .env\nE",
    # to a shell that is told to read its text in another way, or that thinks somebody types it
    "bash -o keyword -c 'cat README.md PATH=/workspace/evil'", "bash -ok -c 'cat README.md'", "bash -o",
    "bash -o history -o histexpand -s <<X\n: '; cat .env #'\necho !!:s^'^x^:s^'^x^\nX", "bash +o posix -c ls",
    "bash -is <<X\nls\nX", "sh -ic ls", "HISTFILE=list bash -s <<X\nls\nX", "PS1='$(cat .env)' sh -c ls",
    "export PS2='$(cat .env)'; ls", "INPUTRC=.env ls", "BASH_COMPAT=4.0 ls", "EXECIGNORE=x ls",
    # by a catalogue of messages, which is looked up first and expanded next
    'x=$"hi"', "LANGUAGE=../../../workspace/src ls no", "TEXTDOMAINDIR=/workspace ls", "LC_ALL=zh_HK.BIG5 cat 'a'",
    "LC_MESSAGES=/workspace ls", "TERM=/workspace/x ls", "_POSIX2_VERSION=199209 tail +1 README.md",
    # by an option that only a run would tell
    "X=-r; grep $X a .", 'X=-r; grep "$X" a .', "X=-R; ls $X", "for f in -r -n; do grep $f a .; done", "grep -rn*x .",
    "grep {-r,-n} a .", "grep \\-r* a .", 'grep "-r"* a .', "X=*; grep -r$X a .", "X=--files0-from=list0; wc $X",
    "X=r; grep -$X a .", "ls -R*", "X=-f; grep $X list README.md",
    # by a number that only a run would tell, which is the name of a link
    "cd num; false; cat $?", "cd num; bash -c 'cat \"$#\"' a b", "X=$?; cat num/$X", "cat num/${?}",
    # by a find that reads a bracket as a shell does
    "find . -name '[^x]env' -exec cat {} +", "find src -name '[^x]ink.txt' -exec cat {} +",
    # by git, which takes a file that its index says is unchanged for what is committed
    "git show ':infra/*/key'", "git show ':(glob)infra/**'", "git diff HEAD ':infra'",
    # and is not written over
    "echo x > docs/own", ": > hard", "tee docs/own < README.md",
)  # fmt: skip


def verdict(judge: Judge, line: str) -> str:
    return judge.judge("run_terminal_cmd", {"command": line}).verdict


def test_no_way_round_is_allowed_unasked(trial: Trial) -> None:
    assert [line for line in REFUSED if trial.allowed(line)] == []


def test_a_short_line_that_stands_for_much_is_judged_at_once(trial: Trial) -> None:
    """Each variable is looked at once, though it stands four times in the one before: no count of looks, the test's own
    deadline would tell."""
    doubled = "".join(f"a{at}=$a{at + 1}$a{at + 1}$a{at + 1}$a{at + 1};" for at in range(40))
    assert verdict(trial.judge, f"{doubled}a40=;ls $a0") == "allow"
    chain = "".join(f"a{at}=$a{at + 1};" for at in range(900))
    assert verdict(trial.judge, f"{chain}a900=x;cat $a0") == "ask"
    assert verdict(trial.judge, "x=$y;y=$x;cat $x") == "ask"


HARMLESS = (
    "N=3; head -$N README.md", "N=3; git log -$N", "X=-n; echo \"$X\"",
    "echo $?", "ls; exit $?", "[ $? -eq 0 ] && echo yes", "printf '%s %s\\n' $? $#", "bash -euo pipefail -c ls",
    "bash -o errexit -c ls", "LC_ALL=C ls", "LANG=en_US.UTF-8 ls", "TERM=xterm-256color ls", "cat src/[0-9]*",
    "rg -n -A 3 a tests", "rg -e a tests", "rg --type py a tests", "grep -rn -A 3 -B2 a tests", "grep -rnm1 a tests",
    "grep -rn --exclude-dir=x a tests", "grep -rn -e a tests", "ls -R -w 80 tests", "tree -L 2 tests", "du -d 1 tests",
    "find -P tests -name a", "cd tests && find -- . -name a", "rg --files tests",
)  # fmt: skip


def test_git_takes_files_from_the_top_of_its_repository_wherever_that_is(trial: Trial) -> None:
    """Above the workspace, and behind a link."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    shutil.rmtree(trial.project / ".git")
    (trial.project / "nest" / "deep").mkdir(parents=True)
    (trial.project / "linked").symlink_to("nest/deep")
    for top in (trial.project.parent, trial.project / "nest"):
        subprocess.run([*git, "init", "-qb", "main", str(top)], check=True)
    rules = PermissionConfig(deny=("read(../vault/**)", "read(nest/secret)"))
    judge = Judge(rules, WorkspacePaths(trial.project), env=trial.env)
    for line in (
        "git blame -S vault/token README.md", "git blame --ignore-revs-file=vault/token README.md",
        "git -C linked blame -S secret f.txt", "cd linked && git blame -S secret f.txt",
    ):  # fmt: skip
        assert verdict(judge, line) != "allow", line


def test_words_of_git_are_no_directories_of_the_machine(trial: Trial) -> None:
    judge = Judge(PermissionConfig(allow=("run(git *)",)), WorkspacePaths(trial.project), env=trial.env)
    for line in ("git add .", "git log -- .", "git diff .", "git -C . log", "git log -- lib", "git checkout -b dev"):
        assert verdict(judge, line) == "allow", line


def test_an_option_that_takes_a_word_is_no_reason_to_ask(trial: Trial) -> None:
    assert [line for line in HARMLESS if not trial.allowed(line)] == []


def test_what_ripgrep_passes_over_is_no_reason_to_ask(trial: Trial) -> None:
    (trial.project / "opt" / ".env").unlink()  # a link, which is not followed either
    judge = Judge(PermissionConfig(), WorkspacePaths(trial.project), env=trial.env)
    assert verdict(judge, "rg -g '*.py' a") == "allow" and verdict(judge, "rg a") == "ask", "odd/-f.env is a secret"
    for name in ("hard", "opt/-f.env", "odd/-f.env"):
        (trial.project / name).unlink()
    for line in ("rg -g '*.py' a", "rg -n -g'*.{py,c}' a .", "rg --glob='!*.lock' a", "rg --files -g '*.md'"):
        assert verdict(judge, line) == "allow", line
    for line in ("rg -g '*' a", "rg -g '.e*' a", "rg -g '*.{py,env}' a", "rg -g '**/*nv' a", "rg -L --files"):
        assert verdict(judge, line) == "ask", line


def test_everyday_commands_are_not_asked_about(trial: Trial) -> None:
    assert len(permissions.everyday()) == 300 == len(set(permissions.everyday()))
    shares = permissions.shares(trial, permissions.everyday())
    assert shares["default"] >= 0.9 and shares["denied_and_hidden"] >= 0.9, shares
    assert shares["denied_only"] >= 0.65 and shares["plain_words"] < shares["default"], shares
    others = permissions.shares(trial, permissions.everyday("everyday_by_others"))
    assert others["default"] >= 0.85, others


def test_what_the_sandbox_hides_is_not_asked_about_and_what_comes_later_is(trial: Trial) -> None:
    (trial.project / ".env").unlink()
    (trial.project / "hard").unlink()
    for name in ("opt/.env", "opt/-f.env", "odd/-f.env"):  # which the built-in rules ask about
        (trial.project / name).unlink()
    hidden = [str(trial.project / "infra" / "secrets"), str(trial.project / "hard-key"), str(trial.home / ".codex")]
    judge = Judge(
        PermissionConfig(deny=("read(.env)", "read(infra/secrets/**)", "read(~/.codex/**)")),
        WorkspacePaths(trial.project), env=trial.env, hidden=hidden,
    )  # fmt: skip
    for line in ("grep -rn a .", "git status", "find .", "git diff", "ls -R"):
        assert verdict(judge, line) == "allow", line
    assert verdict(judge, "cat infra/secrets/key") == "deny", "a rule is a rule, by name"
    (trial.project / ".env").write_text("later\n")
    assert verdict(judge, "grep -rn a .") == "ask"


def test_tools_read_a_denied_file_by_no_name_and_search_it_only_where_it_is_hidden(trial: Trial) -> None:
    for name in ("opt/-f.env", "odd/-f.env"):  # which the built-in rules ask about
        (trial.project / name).unlink()
    for path in (
        ".env",
        "hard",
        "link-env",
        "src/link.txt",
        "infra/secrets/key",
        "~/.codex/auth.json",
        "'~'",
        "//etc/shadow",
    ):
        decision = trial.judge.judge("read_file", {"path": path})
        assert decision.verdict == ("deny" if path != "'~'" else "allow"), (path, decision.explain())
    for tool in ("grep", "glob", "codebase_search"):
        assert trial.judge.judge(tool, {"pattern": "a", "path": "."}).verdict == "ask"
        assert trial.judge.judge(tool, {"pattern": "a", "path": "tests"}).verdict == "allow"
        hidden = [str(trial.project / name) for name in (".env", "hard", "hard-key", "infra/secrets", "docs/own")]
        judge = Judge(trial.rules, WorkspacePaths(trial.project), env=trial.env, hidden=hidden)
        assert judge.judge(tool, {"pattern": "a", "path": "."}).verdict == "allow"


def test_a_command_the_user_allows_may_have_unknown_words_unless_they_could_be_denied(trial: Trial) -> None:
    allow = ("run(make *)",)
    assert verdict(Judge(PermissionConfig(allow=allow), WorkspacePaths(trial.project), env={}), "make $X") == "allow"
    denying = PermissionConfig(allow=allow, deny=("read(.env)",))
    assert verdict(Judge(denying, WorkspacePaths(trial.project), env={}), "make $X") == "ask"
    gone = [str(trial.project / name) for name in (".env", "hard")]
    assert verdict(Judge(denying, WorkspacePaths(trial.project), env={}, hidden=gone), "make $X") == "allow"


ALLOWED_GIT = (
    "git add -A", "git add -p", "git stash -u", "git stash push --all", "git hash-object -w --stdin-paths",
    "git grep --untracked a", "git grep --no-index a", "git diff --no-index src docs", "git -C src add -A",
    "git update-index --add --stdin", "git ls-files -o --eol", "cd src && git add -A",
)  # fmt: skip


@pytest.mark.parametrize("line", ALLOWED_GIT)
def test_a_rule_that_allows_git_gives_it_no_file_that_may_not_be_read(trial: Trial, line: str) -> None:
    rules = PermissionConfig(allow=("run(git *)",), deny=("read(docs/own)",))
    own = trial.project / "docs" / "own"
    assert verdict(Judge(rules, WorkspacePaths(trial.project), env={}), line) == "ask"
    assert verdict(Judge(rules, WorkspacePaths(trial.project), env={}, hidden=[str(own)]), line) == "allow", (
        "it is not there"
    )
    assert verdict(Judge(rules, WorkspacePaths(trial.project), env={}), "git commit -m x") == "allow"


def test_a_repository_in_the_worktree_has_an_index_too(trial: Trial) -> None:
    inner = trial.project / "src" / "inner"
    inner.mkdir()
    (inner / "pin").write_text("secret\n")
    rules = PermissionConfig(deny=("read(src/inner/pin)",))
    judge = Judge(rules, WorkspacePaths(trial.project), env=trial.env)
    assert verdict(judge, "git grep --recurse-submodules a") == "allow", "no index has it"
    git(inner, "init", "-q")
    git(inner, "add", "pin")
    assert verdict(judge, "git grep --recurse-submodules a") == "ask"
    assert verdict(judge, "git -C src/inner diff") == "ask"


def test_two_directories_are_compared_where_there_is_no_repository(trial: Trial) -> None:
    rules = PermissionConfig(deny=("read(docs/own)",))
    judge = Judge(rules, WorkspacePaths(trial.project), env=trial.env)
    assert verdict(judge, "git diff src docs") == "allow", "these are paths of the worktree to it"
    (trial.project / ".git").rename(trial.top / "gone")
    assert verdict(judge, "git diff src docs") == "ask"
    assert verdict(judge, "git diff src tests") == "allow"


def git(directory: Path, *words: str) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=directory, check=True)


@pytest.mark.parametrize(
    "line",
    [
        "git stash list --output=infra/x", "git stash list --format=evil --output=Makefile",
        "git stash show --output=x", "git stash list -Osecrets", "git stash list -p --ext-diff",
        "declare -n r='a[$(touch pwned)]'; echo $r", "f() { local -n r='a[$(touch pwned)]'; echo $r; }; f",
        "typeset -n r='a[$(touch pwned)]'; echo \"$r\"", "declare -i r='a[$(touch pwned)]'",
        "declare -rn r='a[`touch pwned`]'; echo $r", "local -i r='a[$(touch pwned)]'",
        "export -n r; declare +x -n q=r", "bash -c \"declare -n r='a[\\$(git push)]'; echo \\$r\"",
        "TZ=:$PWD/.env date", "export TZ=:/etc/shadow; date", "TZDIR=$PWD TZ=.env date",
    ],
)  # fmt: skip
def test_what_lists_or_declares_neither_writes_nor_runs(line):
    assert Judge(PermissionConfig()).judge("run_terminal_cmd", {"command": line}).verdict == "ask"


@pytest.mark.parametrize(
    "line", ["git stash list", "git stash list -3 --oneline", "git stash show -p stash@{1}", "export A=1; echo $A",
             "readonly B=2; declare -x C=3"],
)  # fmt: skip
def test_what_lists_and_declares_plainly_is_not_asked_about(line):
    assert Judge(PermissionConfig()).judge("run_terminal_cmd", {"command": line}).verdict == "allow"


def test_what_a_shell_runs_is_run_where_the_shell_is(trial: Trial) -> None:
    for line in (
        "env -C infra/secrets bash -c 'cat key'", "env -C infra sh -c 'cat secrets/key'",
        "env -C infra/secrets sh -c 'cat .'",
        "for i in 1 2; do sh -c 'cat key'; cd infra/secrets; done", "find infra -execdir sh -c 'cat secrets/key' \\;",
        "env -C infra/secrets xargs -a key echo", "env -C infra find . -exec cat secrets/key \\;",
        "env -C infra/secrets eval 'cat key'",
    ):  # fmt: skip
        assert verdict(trial.judge, line) != "allow", line


def test_a_link_to_what_is_above_leads_by_way_of_workspace_to_the_top(trial: Trial) -> None:
    """/workspace lies in `/`; the workspace itself, at its own path, lies elsewhere."""
    vault = f"link-out{trial.top}/vault/token"
    for line in (
        f"cat {vault}",
        "cat link-out/etc/shadow",
        "cat link-out/et[c]/shadow",
        "cd link-out && cat etc/shadow",
    ):
        assert verdict(trial.judge, line) == "deny", line
        assert trial.opened([line]).hits != [] or not os.access("/etc/shadow", os.R_OK), line
    assert verdict(trial.judge, "cat link-out/vault/token") == "deny", "by the workspace's own path"
    assert verdict(trial.judge, "cat link-out/etc/passwd") == "ask"
    (trial.project / "empty").mkdir()
    assert verdict(trial.judge, "cat empty/.*/.env") == "deny", "an empty directory has a parent too"
    assert verdict(trial.judge, "cat src/link-up/README.md") == "allow"


BEHIND = ("2>&-", "<&-", "1<&-", "3>&-", "2>/dev/null", "2>&1", ">&2", "3<&0", "<<< x")


@pytest.mark.parametrize("redirection", BEHIND)
def test_a_word_behind_a_redirection_is_a_word_of_the_command(trial: Trial, redirection: str) -> None:
    """tree-sitter hangs it on the redirection; a shell gives it to the command."""
    lines = [f"cat {redirection} .env", f"find src {redirection} -delete", f"env {redirection} ./x.sh"]
    for line in (
        *lines,
        f"sed p {redirection} -i",
        f"git branch {redirection} new",
        f"rg a {redirection} --pre=./x.sh",
    ):
        assert verdict(trial.judge, line) != "allow", line
    for line in (
        'cat <<E $".env"\nE > o',
        "cat <<E '.env'\nE",
        "cat .en{v,}0<README.md",
        "env ./x<<E\nE",
        "\u00e9=1 cat README.md",
    ):
        assert verdict(trial.judge, line) != "allow", line
    for line in (
        "cat README.md 2>&- | wc -l",
        "cat <<E\nhi\nE",
        "cat <<E | wc -l\nhi\nE",
        "sort 0<README.md 2>/dev/null",
    ):
        assert verdict(trial.judge, line) == ("ask" if "0<" in line else "allow"), line


def test_what_a_find_runs_is_chosen_by_the_tests_before_it_alone(trial: Trial) -> None:
    (trial.project / "lk").mkdir()
    (trial.project / "lk" / "k").symlink_to("../../vault/token")
    (trial.project / "app").mkdir()
    (trial.project / "app" / ".env").touch()
    for words in (
        "-printf -name",
        "-exec echo -name x \\;",
        "-exec echo -type f \\;",
        "-printf -type",
        "-name x -o -true",
    ):
        for place in ("lk", "app"):
            assert verdict(trial.judge, f"find {place} {words} -exec cat {{}} +") != "allow", (place, words)
    assert verdict(trial.judge, "find app -exec cat {} + -name x") != "allow"
    for line in ("find lk -type f -exec cat {} +", "find app -name x -newermt 2024-01-01 -exec cat {} +"):
        assert verdict(trial.judge, line) == "allow", line


def test_words_of_git_are_meant_from_where_it_goes_first(trial: Trial) -> None:
    for line in ("git -C infra blame secrets/key", "git -C infra --no-pager blame -w secrets/key"):
        assert verdict(trial.judge, line) == "deny", line
    assert verdict(trial.judge, "git -C infra blame app.txt") == "allow"


def test_each_place_that_diff_goes_through_is_looked_at(trial: Trial) -> None:
    for option in ("--from-file=../infra", "--to-file=../infra", "--to=../infra", "--from-file ../infra"):
        assert verdict(trial.judge, f"cd tests && diff -rN {option} .") != "allow", option


def test_a_word_behind_the_file_that_xxd_reads_is_a_file_it_writes(trial: Trial) -> None:
    for line in ("xxd README.md -d", "cd tests && xxd recurse -d && grep . *", "uniq README.md -c"):
        assert verdict(trial.judge, line) != "allow", line
    assert verdict(trial.judge, "xxd -l16 README.md") == "allow"


def test_what_lies_in_a_directory_of_the_session_s_own_is_not_known_here(trial: Trial) -> None:
    """/tmp of the sandbox is not this machine's: the agent may write there unasked, options' names and git's config."""
    lines = ["cd /tmp/a && grep . * README.md", "cat /tmp/*", "cd /tmp/r && git status", "git -C /tmp/r log"]
    for line in (*lines, "cd /run && cat *", "cat /va[r]/run/*", "cd /workspace/../tmp/r && git diff"):
        assert verdict(trial.judge, line) == "ask", line
    for line in ("cat /tmp/out.log", "ls /tmp", "grep -n a /tmp/out.log", "cd /tmp && ls -la"):
        assert verdict(trial.judge, line) == "allow", line
