# Plays commands and writes them down: `title`, `words`, `run`, `refused`, `set_`, `begun`, `holds`.
#
# The page has every command as it was typed and what it said, shortened. Whatever fails ends the hour with the step's
# name, the command and the end of what it said. Every command has a deadline.
page=/said/page.md
last=/tmp/last
block=""
now=""

stop() {
    {
        echo "first hour: stopped at \"$now\": $1"
        tail -n 40 "$last" 2>/dev/null
    } >&2
    exit 1
}
close_() {
    [ -z "$block" ] || echo '```' >>"$page"
    block=""
}
open_() {
    [ -n "$block" ] || printf '\n```\n' >>"$page"
    block=yes
}
title() {
    close_
    now=$1
    printf '\n## %s\n' "$1" >>"$page"
    echo "first hour: $1"
}
words() {
    close_
    printf '%s\n' "$@" >>"$page"
}
shortened() { # 16 lines of 150 characters; what is in between is left out
    sed -E 's/\x1b\[[0-9;]*m//g; s/\r/\n/g; s#/sys/fs/cgroup/[^ ,]*#/sys/fs/cgroup/…#; s/(Linux-[0-9.]+)[^ ]*/\1/' "$last" | awk '
        { line[NR] = length($0) > 150 ? substr($0, 1, 150) " …" : $0 }
        END { for (i = 1; i <= NR; i++) if (NR <= 16 || i <= 10 || i > NR - 5) print line[i]; else if (i == 11) print "…" }'
}
_play() { # COMMAND DEADLINE_S: its status
    local from=$SECONDS status=0
    timeout --kill-after=5 "$2" bash -c "$1" >"$last" 2>&1 </dev/null || status=$?
    echo "  ${shown:-\$} $1  ($((SECONDS - from)) s)"
    open_
    { echo "${shown:-\$} $1" && shortened; } >>"$page"
    [ $status != 124 ] || stop "\`$1\` did not end in $2 s; it said:"
    return $status
}
run() { # COMMAND [DEADLINE_S]: it must succeed
    _play "$1" "${2:-600}" || stop "\`$1\` ended with status $?; it said:"
}
refused() { # COMMAND: it must fail
    ! _play "$1" 60 || stop "\`$1\` was to be refused; it said:"
}
set_() { # a line for this shell, and so for all commands after it
    open_
    echo "\$ $1" >>"$page"
    eval "$1" || stop "\`$1\` failed"
}
begun() { # COMMAND FILE: in the background, and FILE has a line once it is ready
    open_
    echo "\$ ($1 > $2 &)" >>"$page"
    rm -f "$2"
    (eval "exec $1" >"$2" 2>"$2.said" </dev/null) &
    local server=$! tries=120
    until [ -s "$2" ]; do
        cp "$2.said" "$last" 2>/dev/null
        kill -0 $server 2>/dev/null || stop "\`$1\` ended; it said:"
        tries=$((tries - 1))
        [ $tries -gt 0 ] || stop "\`$1\` was not ready in 120 s; it said:"
        sleep 1
    done
}
holds() { # WHAT CONDITION: what the page says must be so
    bash -c "$2" >"$last" 2>&1 </dev/null || stop "it should hold that $1: \`$2\`"
}
