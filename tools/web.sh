#!/bin/sh
# Builds the studio's pages (web/) into etude/studio/static: the same bytes each time, from the versions in package-lock.json.
# `tools/web.sh DIR` builds into another directory. Needs Node 20.19 or later; who only uses Etude needs none.
set -eu
out="${1:-}"
cd "$(dirname "$0")/../web"
command -v npm >/dev/null 2>&1 || { echo "tools/web.sh needs Node 20.19 or later, with npm: https://nodejs.org" >&2; exit 1; }
[ node_modules/.package-lock.json -nt package-lock.json ] || npm ci --no-audit --no-fund --silent
npm run --silent check
npx vite build --logLevel error ${out:+--outDir "$out/static"}
npx vite build --logLevel error --config vite.report.ts ${out:+--outDir "$out/report"}
