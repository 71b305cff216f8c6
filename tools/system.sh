#!/bin/sh
# Installs the programs that sandboxes need (bubblewrap, a C compiler) where that is allowed; otherwise says what to run.
# What only images and tests use is installed along with them, and not asked for where we may not install.
set -eu

missing=""
command -v bwrap >/dev/null 2>&1 || missing="$missing bubblewrap"
command -v cc >/dev/null 2>&1 || missing="$missing gcc libc6-dev"
wanted=""
command -v mkfs.erofs >/dev/null 2>&1 || wanted="$wanted erofs-utils"
command -v mmdebstrap >/dev/null 2>&1 || wanted="$wanted mmdebstrap"
command -v busybox >/dev/null 2>&1 || wanted="$wanted busybox-static"
command -v strace >/dev/null 2>&1 || wanted="$wanted strace"
[ -z "$missing$wanted" ] && exit 0

if command -v apt-get >/dev/null 2>&1; then
    if [ "$(id -u)" = 0 ]; then as_root=""; elif sudo -n true 2>/dev/null; then as_root="sudo -n"; else as_root=none; fi
    if [ "$as_root" != none ]; then
        echo "installing$missing$wanted"
        $as_root apt-get update -qq
        # shellcheck disable=SC2086
        DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends $missing $wanted >/dev/null
        exit 0
    fi
fi
[ -z "$missing" ] && exit 0
echo "sandboxes need:$missing" >&2
echo "run:  sudo apt-get install$missing    (or your system's equivalent), then the same make command again" >&2
exit 1
