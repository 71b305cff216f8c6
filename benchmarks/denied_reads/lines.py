"""Command lines made at random around paths that may not be read.

Owns `make_line`. A line is a command of everyday shape with a path in it, in the constructs of a shell, and the path is
written in one of the ways that lead to a denied file: by its name, its links, patterns, variables, directories, lists.
Half of the lines are damaged at random as well. Nothing here knows how the judge works.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from denied_reads.corners import CORNERS

SHAPES = (
    "cat %", "cat -n %", "cat README.md %", "head %", "head -n 3 %", "tail -5 %", "tail -c 20 -- %", "wc -l %", "nl %",
    "tac %", "rev %", "cut -c1-9 %", "fold %", "paste % README.md", "sort %", "sort -u %", "sort -o o %", "uniq %",
    "comm % README.md", "cmp % README.md", "diff % README.md", "diff -u README.md %", "diff --from-file=% README.md",
    "diff -r % src", "od -c %", "xxd %", "strings %", "strings @%", "hexdump -C %", "md5sum %", "sha256sum %",
    "md5sum -c %", "md5sum --check %", "base64 %", "file %", "file -f %", "stat %", "ls %", "ls -la %", "ls -R %",
    "du -sh %", "du -a %", "grep -n a %", "grep -rn a %", "grep -r a", "grep -c '' %", "grep -f % README.md",
    "grep -f% README.md", "grep --file=% README.md", "grep -vf% README.md", "egrep a %", "fgrep -l a % README.md",
    "grep -d recurse a %", "grep -R a src %", "sed -n 1,5p %", "sed -n '$p' %", "sed 's/a/b/' %", "sed -e 's/a/b/g' %",
    "sed -n 'r %' README.md", "sed 'R%' README.md", "sed -f % README.md", "sed -n '/a/,/b/p' %", "awk '{print $1}' %",
    "awk 'NR>=1' %", "awk -F: '{print $1}' %", "awk -f % README.md",
    "awk '{while((getline l < \"%\")>0) print l}' README.md", "awk 'BEGIN{ARGV[1]=\"%\";ARGC=2}{print}' x", "jq . %",
    "jq -n --rawfile a % '$a'", "jq --slurpfile a % .", "jq -f % .", "jq -n 'import \"%\" as $x; $x'", "column -t %",
    "tr a b < %", "cat < %", "cat <%", "cat 2>&- %", "cat <&- %", "grep a 2>/dev/null %", "cat >&2 %", "cat 3<&0 %",
    "cat 2>&1 %", "cat {fd}< %", "cat 0<&- < %", "cat 3<> %", "cat <<E %\nE",
    "cat % - <<E\nE", "cat %-<<E\nE", "cd src && cat ../% - <<-E | wc\nE",
    "cat <<< x %", "cat % 2>&-", "< % cat",
    "2>&1 cat %", "cat &>o %", "find % 2>&- -exec cat {} +", "git -C infra blame secrets/key", "git -C infra diff %",
    "find link-secrets -printf -name -exec cat {} +", "find % -exec echo -type f \\; -exec cat {} +",
    "diff -rN --from-file=% .", "cd tests && diff -rN --to=../infra .", "xxd README.md -d; grep . *", "xxd % -d",
    "export X={README.md,%}; cat $X", "env -C infra/secrets bash -c 'cat key'", "env -C infra sh -c 'head secrets/key'",
    "find infra -type d -execdir sh -c 'cat secrets/key' \\;", "cat link-out/%",
    "for i in 1 2; do sh -c 'cat key'; cd infra/secrets; done", "cd link-out && cat %", "cat link-out/etc/shadow",
    "env -C infra/secrets xargs -a key echo", "[ -f %\n] && cat %", "declare X={a,%} Y=b; cat $X",
    "wc -l < %", "cat 0<%", "read l < %",
    "while read -r l; do echo \"$l\"; done < %", "mapfile l < %", "exec 3< %; cat <&3", "tee < %", "echo $(< %)",
    "echo \"$(<%)\"", "echo $(cat %)", "echo `cat %`", "x=$(cat %)", "x=$(<%); echo $x", "cat <<< $(cat %)",
    "cat <<E\n$(cat %)\nE", "cat <(cat %)", "diff <(sort %) <(sort README.md)", "echo %", "echo a %",
    "printf '%s\\n' %", "test -f %", "[ -r % ] && echo yes", "[ -f % ] && cat %", "basename %", "realpath %",
    "readlink -f %", "cd %", "cd % && ls", "pushd %", "find % -name '*'", "find . -name '*' -exec cat {} +",
    "find % -exec cat {} \\;", "find . -name '*.txt' -exec cat {} +", "find . -type f -exec head -1 {} \\;",
    "find . -exec grep -l a % \\;", "find infra -maxdepth 0 -execdir cat % \\;", "find -files0-from %",
    "find . -newer %", "find % -printf x", "find src infra -name '*.txt' -execdir cat secrets/key \\;", "xargs cat < %",
    "xargs -a % cat", "xargs -a % echo", "xargs --arg-file=% echo", "echo % | xargs cat", "echo '%' | xargs cat",
    "printf '%s\\n' % | xargs -n1 wc -l", "ls % | while read f; do cat \"$f\"; done", "cat list | xargs cat",
    "cat $(cat list)", "cat $(<list)", "xargs cat <list", "for f in $(cat list); do cat $f; done",
    "while read f; do cat \"$f\"; done < list", "wc --files0-from=%", "wc --files0-from=list0", "wc --files0 list0",
    "sort --files0-from=list0", "du --files0-from=list0", "md5sum -c sums", "cat $(head -1 list)",
    "for f in %; do cat \"$f\"; done", "for f in %; do cat $f; done", "for f in %; do echo $f; done",
    "for f in % README.md; do wc -l \"$f\"; done", "for f in odd/*; do cat $f; done",
    "for f in odd/*; do cat \"$f\"; done", "cat odd/*", "cd odd && cat *", "cd odd && wc *", "cd odd && grep a *",
    "head -1 src/* %", "cat *", "cat .*", "cat */*", "cat infra/*", "ls infra/*", "ls *", "cat */*/*", "grep a .* *",
    "X=%; cat $X", "X=%; cat \"$X\"", "X='%'; cat $X", "X=%; Y=$X; cat ${Y}", "X=%; cat <$X",
    "X=%; for f in $X; do cat $f; done", "export X=%; cat $X", "X=% ; sh -c 'cat $X'", "X=% sh -c 'cat $X'",
    "env X=% sh -c 'cat $X'", "sh -c 'cat $0' %", "sh -c 'cat \"$1\"' - %", "bash -c 'cat %'", "eval cat %",
    "eval 'cat %'", "eval \"cat %\"", "X='cat %'; $X", "X='cat %'; eval $X", "read X <<< %; cat $X",
    "read X < list; cat $X", "printf -v X '%s' %; cat $X", "declare -n N=X; X=%; cat $N", "declare -l L=%; cat $L",
    "X=README.md; X+=%; cat $X", ": ${X:=%}; cat $X", "X=; : ${X:=%}; cat $X", "cat ${X:-%}", "cat ${X-%}",
    "set -- %; cat $1", "set -- %; cat \"$@\"", "f() { cat \"$1\"; }; f %", "f() { cat %; }; f",
    "f() { cat $X; }; X=%; f", ": %; cat $_", "X=(%); cat ${X[0]}", "X=%; cat ${X%z}", "X=%; cat ${X/z/y}",
    "X=%x; cat ${X%x}", "trap 'cat %' EXIT", "trap 'cat %' 0", "cat % || cat README.md", "cat README.md || cat %",
    "cat README.md && cat %", "cat README.md; cat %", "! cat %", "time cat %", "timeout 5 cat %", "nice cat %",
    "env cat %", "command cat %", "exec cat %", "/bin/cat %", "\\cat %", "'cat' %", "$(echo cat) %", "cp % o", "ln % o",
    "ln -s % o; cat o", "mv % o", "tar cf - %", "tar -cf - -T list", "dd if=% of=o",
    "python3 -c 'print(open(\"%\").read())'", "perl -pe1 %", "source %", ". %", "sh %", "less %", "more %",
    "git diff --no-index README.md %", "git diff -- %", "git grep a -- %", "git grep a", "git grep --no-index a",
    "git diff", "git status", "git ls-files -m", "git blame --contents % README.md", "git blame --contents=% README.md",
    "git log -O%", "git show HEAD:%", "git hash-object %", "git log -p -- %", "git blame -S % README.md",
    "git check-ignore --stdin < %", "git -c core.excludesfile=% status", "git -C infra ls-files -o",
    "git ls-files -X % -o", "git ls-files --exclude-from=% -o", "git shortlog < %", "git config -f % --list",
    "git config --list --file %", "git diff --stat -O %", "date -f %", "date -r %", "od --format=c %", "cksum %",
    "cd opt && grep a *", "cd opt && grep a -*", "cd lists && wc -*", "cd lists && du *",
    "git grep --untracked a", "git grep --untr a", "git grep --untracked --no-exclude-standard a",
    "git grep --no-index a docs", "git diff % src", "git diff --no-index docs src", "git -C .git diff ../src ../docs",
    "git ls-files -o --eol", "git ls-files -o --exclude-per-directory=own", "git add -n .", "git stash list",
    "git hash-object --stdin-paths < list", "git status --short", "[[ x == % ]]", "[[ x =~ % ]]", "[[ -f % ]]",
    "[[ % != x ]]", "[ x = % ]", "X=(%)", "X=(src %); echo $X", "export X=%", "mkdir -p c && cd c && cat ../% && cd ..",
    "bash -c 'echo $(( $1 ))' _ 'a[$(cat %)]'", "set -- 'a[$(cat %)]'; echo $(( $1 ))", "A=([$(cat indices)]=1)",
    "eval \"$(grep . scripts)\"", "eval \"$(sed -n 1p scripts)\"", "eval $(<scripts)", "source <(grep a scripts)",
    ". <(cat scripts)", "bash <(sed 1q scripts)", "sed -n 1p scripts | sh",
    "X=$(<scripts); $X", "bash -c \"$(<scripts)\"",
    "find . -name scripts -exec sh -c '. \"$1\"' _ {} \\;",
    "find . -name scripts -exec bash -c 'eval \"$(<$0)\"' {} \\;",
    "find % -exec sh -c 'cat \"$1\"' _ {} \\;", "xargs -I{} sh -c '{}' < scripts", "xargs -rI@ sh -c '@' < scripts",
    "xargs -0I@ sh -c 'echo $(@)' < scripts", "ls | xargs --replace cat % ls", "ls | xargs --max-lines cat % ls",
    "env -S 'cat %'", "env --split-string='cat %'", "cd names && test *", "cd names && printf * x",
    "cd names && for f in *; do for g in *; do [ \"$f\" \"$g\" ]; done; done",
    "cd names && for f in *; do test $f $f; done",
    "grep -r -A 3 a %", "grep -rC2 a %", "grep -re a %", "grep -r --context 3 %", "grep -r --exclude x %",
    "grep -rn --max-count 3 a %", "grep -r --regexp=a %", "grep -rn a -- %", "rg a %", "rg -A 3 a %", "rg -e a %",
    "rg -g '*' a %", "rg --type py a %", "rg --files %", "rg --max-depth 3 %", "ls -Rw 80 %", "ls -R --ignore x %",
    "tree %", "tree -L 2 %", "du -d 1 %", "du --exclude %", "find -P % -name '*'", "find -- % -maxdepth 2",
    "diff -rU 3 % src",
    "expand %", "split %", "csplit % 1", "tsort %", "ptx %", "join % %", "shuf %", "factor < %",
)  # fmt: skip
AROUND = (
    "%", "%", "%", "%", "% | head", "% 2>/dev/null", "% 2>&1 | tail -3", "ls; %", "true && %", "(%)", "{ %; }",
    "if %; then :; fi", "if true; then %; fi", "for i in 1 2; do %; done", "while %; do break; done", "echo $(%)",
    'echo "$(%)"', "% &\nwait", "cd src && %", "cd src; %", "(cd infra && %)", "cd infra; %", "cd infra/secrets; %",
    "cd ~/.codex; %", "cd $HOME && %", "cd link-etc && %", "cd /etc; %", "cd ..; %", "cd src/.. && %",
    "cd infra && cd secrets && %", "cd src && cd .. && %", "cd link-out && cd .. && %", "cd link-out && cd vault && %",
    "cd src && ls 2>&1 && %", "cd src && ls > o && cd .. && %", "cd src && ls && cd ../infra/secrets && %",
    "cd() { :; }; cd src && %", "cd no && cd src || %", "cd src && cd no || %", "cd infra && (cd secrets) && %",
    "cd infra && sh -c 'cd secrets' && %", "cd infra && eval 'cd secrets' && %", "cd src | cat && %", "cd .git && %",
    "! cd src && %", "cd infra/secrets && cd - && %", "cd src && env cd .. && %", "(cd src && cd ..) && %",
    "for i in 1 2; do %; cd infra; done", "cd /; %", "for i in 1 2; do %; cd infra/secrets; done",
    "for i in 1 2 3; do cd ..; done; %", "f() { cd infra/secrets; }; f; %", "f() { %; }; cd infra; f", "f() { %; }; f",
    "trap '%' EXIT; cd infra/secrets", "env -C infra/secrets %", "env -C infra %", "pushd infra; %", "cd $X; %",
    "X=infra/secrets; cd $X; %", "cd link-out && %", "cd infra/secrets/..; %", "timeout 5 %", "env %", "env -i %",
    "sh -c '%'", 'bash -c "%"', "eval '%'", "%; ls", "% > o", "% >> o 2>&1", "cat README.md | %", "shopt -s dotglob; %",
    "shopt -s globstar; %", "set -f; %", "set -e; %", "IFS=/; %", "HOME=/etc; %", "PWD=/etc; %", "GLOBIGNORE=x; %",
    "cat <<E\n$(%)\nE", "case a in a) %;; esac", "time %", "! %", "% <README.md", "bash <<'E'\n%\nE",
)  # fmt: skip
PIECES = (
    '"', "'", "`", "$", "(", ")", "{", "}", ";", "&", "|", "<", ">", "\n", "#", "*", "?", "[", "]", "!", "=", "~", "\\",
    " ", "\t", "\\\n", "$(", "${", "<<E\n", "\nE\n", "&&", "||", "/", "..", ".", "-", "--", "@", ":", ",", "$X",
    "$HOME", "$PWD", "~/", "~+", "2>", "a=", "-c ", "-f", "é", "\u0301", "%s", "^", "+", "$_", "$1", "$@", "$?", "*/",
    "../", "./", "//",
)  # fmt: skip
WRITTEN = (
    "$(echo @)", "`echo @`", "${X:-@}", "$'@'", '$"@"', "{@,README.md}", "{README.md,@}", "$(printf %s @)", '"@"',
    "'@'", "@@", "@x", "x@", "@/", "@/.", "@*", "$X@", "@$X", "-@", "--file=@", "@{,.bak}", "$PWD/@", "./@", "~+/@",
    "~-/@", "/proc/self/cwd/@", "/proc/self/root@", "/proc/$$/cwd/@", "/dev/fd/../cwd/@", "//@", "HEAD:@", ":@",
    ":(glob)@", "@:", "a=@", "/workspace/@", "link-self/@", "link-root@", "link-cwd/@", "'~'/@", "src/../@",
    "src/deep/../../@", "link-out/..@", "/workspace/../@", "[@]",
)  # fmt: skip
"""Other ways to write a name, in place of the mark."""
LED = (
    "list", "list0", "sums", "hard", "hard-key", "link-env", "link-codex/auth.json", "link-etc/shadow",
    "link-secrets/key", "link-root/etc/shadow", "link-cwd/.env", "link-chain", "'~'/.codex/auth.json", "link-*",
    "*link*/*", "hard*", "odd/*", "src/link.txt", "src/*.txt", "src/*", "*/*.txt", "link-self/.env",
    "link-out/vault/token", "src/link-up/.env", "../vault/token", "../*/token", "..", "../infra", "../docs", "infra",
    "docs", "../..",
)  # fmt: skip
"""What leads to a denied file by another name, and lists of such files."""
HARMLESS = (
    "README.md", "src/engine.py", "src/*.py", "*.md", ".", "src", "", "$X", "$f", '"$1"', "~", "$HOME", "*",
)  # fmt: skip
"""What does not, or not by itself."""


def make_line(draw: random.Random, denied: Sequence[tuple[str, ...]], everyday: Sequence[str]) -> str:
    """One line. `denied` holds the names of each denied file: absolute, relative to the workspace, from the home."""
    if draw.random() < 0.25:
        line = draw.choice(everyday)
        words = line.split(" ")
        if draw.random() < 0.8:
            words[draw.randrange(len(words))] = way_to(draw, draw.choice(denied))
        line = " ".join(words)
    else:
        line = draw.choice(SHAPES if draw.random() < 0.5 else CORNERS)
        while "%" in line.replace("%s", "").replace("${X%z}", "").replace("${X%x}", ""):
            line = _fill(line, way_to(draw, draw.choice(denied)))
        for _ in range(draw.choice((0, 1, 1, 2))):
            line = draw.choice(AROUND).replace("%", line, 1)
    if draw.random() < 0.5:
        for _ in range(draw.randrange(1, 4)):
            line = _damaged(draw, line)
    return line


def way_to(draw: random.Random, names: tuple[str, ...]) -> str:
    """A denied file, written in some way."""
    name = draw.choice(names)
    kind = draw.random()
    if kind < 0.2:
        return name
    if kind < 0.45:
        return _pattern(draw, name)
    if kind < 0.55:
        return _quoted(draw, name)
    if kind < 0.65:
        cut = draw.randrange(1, len(name))
        before, after = name[:cut], name[cut:]
        inside = (f"{before}''{after}", f"{before}\\{after}", f"{before}$X{after}", f"{before}`echo`{after}")
        return draw.choice((*WRITTEN, *inside)).replace("@", name)
    if kind < 0.8:
        return draw.choice(LED)
    return draw.choice(HARMLESS)


def _pattern(draw: random.Random, name: str) -> str:
    out = []
    for character in name:
        kind = draw.random()
        if character in "/$~" or kind < 0.7:
            out.append(character)
        elif kind < 0.8:
            out.append("?")
        elif kind < 0.9:
            out.append("*")
        else:
            inside = (f"[{character}]", f"[{character}", f"[x{character}]", "[!x]", "[a-z]", "[.a-z]", "[^x]")
            out.append(draw.choice(inside))
    pattern = "".join(out)
    return pattern[: draw.randrange(2, len(pattern) + 1)] + "*" if draw.random() < 0.3 and len(pattern) > 2 else pattern


def _quoted(draw: random.Random, name: str) -> str:
    at, to = sorted((draw.randrange(len(name)), draw.randrange(1, len(name) + 1)))
    mark = draw.choice(('"', "'", "\\"))
    return name[:at] + (mark + name[at:] if mark == "\\" else mark + name[at:to] + mark + name[to:])


def _fill(line: str, path: str) -> str:
    """In place of the first mark; printf's own `%s` and a trimming expansion are none."""
    at = next(
        at for at, character in enumerate(line)
        if character == "%" and line[at : at + 2] != "%s" and line[at - 3 : at] != "${X"
    )  # fmt: skip
    return line[:at] + path.replace("%", "") + line[at + 1 :]


def _damaged(draw: random.Random, line: str) -> str:
    at, kind = draw.randrange(len(line) + 1), draw.random()
    if kind < 0.5:
        return line[:at] + draw.choice(PIECES) + line[at:]
    if kind < 0.75:
        return line[:at] + line[at + draw.randrange(1, 3) :]
    if kind < 0.85:
        return line[:at] + draw.choice(PIECES) + line[at + 1 :]
    return line[:at] + line[at : at + draw.randrange(1, 8)] + line[at:]
