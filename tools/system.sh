#!/bin/sh
# Installs the programs that sandboxes and their images need (bubblewrap, a C compiler, mkfs.erofs) where that is allowed; otherwise says what to run.
set -eu

missing=""
command -v bwrap >/dev/null 2>&1 || missing="$missing bubblewrap"
command -v cc >/dev/null 2>&1 || missing="$missing gcc libc6-dev"
command -v mkfs.erofs >/dev/null 2>&1 || missing="$missing erofs-utils"
[ -z "$missing" ] && exit 0

if command -v apt-get >/dev/null 2>&1; then
    if [ "$(id -u)" = 0 ]; then as_root=""; elif sudo -n true 2>/dev/null; then as_root="sudo -n"; else as_root=none; fi
    if [ "$as_root" != none ]; then
        echo "installing$missing"
        $as_root apt-get update -qq
        # shellcheck disable=SC2086
        DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends $missing >/dev/null
        exit 0
    fi
fi
echo "sandboxes need:$missing" >&2
echo "run:  sudo apt-get install$missing    (or your system's equivalent), then the same make command again" >&2
exit 1
