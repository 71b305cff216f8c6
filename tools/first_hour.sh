#!/bin/bash
# The first hour of somebody new, played from nothing: a bare Debian with Python and apt gets Etude, the agent, tasks
# mined from a real repository, two training steps, a server, and the clients that people use, each with a tool call.
#
#   tools/first_hour.sh [--repository DIR] [--page FILE]
#
#   --repository DIR   the git repository that tasks are mined from; without it, releases of a package make one
#   --page FILE        where the transcript goes (default: build/first-hour.md)
#
# Needs Linux, mmdebstrap, 12 GB below TMPDIR, the registries that apt, pip and npm are set up for here, and root; or, in
# root's place, user namespaces with a range of ids in /etc/subuid (package uidmap).
#
# What is mounted is mounted in a namespace of its own, and what is started runs in a PID namespace: both are gone with
# the script, however it ends. What is played, and in which order, is in first_hour/steps.sh.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
repo=$(dirname "$here")
suite=bookworm # the Python that torch's wheels of constraints.txt are made for

stop() {
    echo "first hour: $*" >&2
    exit 1
}

repository="" page=$repo/build/first-hour.md
while [ $# -gt 0 ]; do
    case "$1" in
        --repository) repository=$(git -C "${2:?--repository needs a directory}" rev-parse --absolute-git-dir) ;;
        --page) page=$(realpath -m "${2:?--page needs a file}") ;;
        *) stop "unknown argument $1; it takes --repository DIR and --page FILE" ;;
    esac
    shift 2
done
command -v mmdebstrap >/dev/null || stop "no mmdebstrap to make a bare Debian with: apt-get install mmdebstrap"
mode=root mapped=() apart=(unshare --mount --propagation private)
if [ "$(id -u)" != 0 ]; then
    { command -v newuidmap && grep "^$(id -un):" /etc/subuid; } >/dev/null 2>&1 ||
        stop "this needs root, or newuidmap (apt-get install uidmap) and a range of ids for $(id -un) in /etc/subuid"
    mode=unshare mapped=(mmdebstrap --unshare-helper) apart=() # a user namespace with that range of ids
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/first-hour.XXXXXX")
root=$work/root given=$work/given said=$work/said
running=""
clean() {
    status=$?
    trap - EXIT INT TERM HUP
    if [ -n "$running" ]; then
        kill -KILL -- "-$running" 2>/dev/null || true # what runs within dies with it, and its mounts go
        wait "$running" 2>/dev/null || true
    fi
    [ ! -d "$root" ] || ${mapped[@]+"${mapped[@]}"} find "$root" -xdev -mindepth 1 -delete || true
    rm -rf --one-file-system "$work" || echo "first hour: $work is left" >&2
    exit $status
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
beside() { # a signal ends the wait, and not only what is waited for
    setsid "$@" &
    running=$!
    wait "$running"
    running=""
}
chmod 755 "$work"
mkdir -p "$given" "$said"
chmod 1777 "$said"

# --- what goes in: Etude as it stands here, the repository, and where this machine's apt, pip and npm get packages ----
git -C "$repo" ls-files -z -co --exclude-standard | (cd "$repo" && xargs -0 ls -d 2>/dev/null) |
    tar -C "$repo" -cf "$given/etude.tar" -T -
[ -z "$repository" ] || git clone -q --bare "$repository" "$given/repository.git"
cp "$here/first_hour/"* "$given/"
bash "$here/first_hour/registries.sh" "$given"

echo "first hour: a bare Debian ($suite) with Python"
apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 2>/dev/null |
    grep -E " $suite(-updates|-security)? " | sort -u >"$work/sources.list" || true
[ -s "$work/sources.list" ] || sources=() # mmdebstrap's own
[ ! -s "$work/sources.list" ] || sources=("$work/sources.list")
apt-config dump 2>/dev/null | grep -E '^Acquire::(Check-|Retries|https?::Proxy)' >"$work/apt.conf" || true
beside ${apart[@]+"${apart[@]}"} mmdebstrap --quiet --mode=$mode --variant=apt --aptopt="$work/apt.conf" \
    --include=python3,ca-certificates,passwd,mount $suite "$root" ${sources[@]+"${sources[@]}"} >"$work/debian.log" 2>&1 ||
    stop "mmdebstrap failed: $(tail -n 5 "$work/debian.log")"

beside ${mapped[@]+"${mapped[@]}"} unshare --mount --pid --fork --kill-child=KILL --propagation private \
    bash "$here/first_hour/enter.sh" "$root" "$given" "$said"
mkdir -p "$(dirname "$page")"
cp "$said/page.md" "$page"
echo "first hour: played to its end; its transcript is $page"
