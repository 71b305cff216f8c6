#!/bin/sh
set -e
cp -R /solution/files/. /workspace/
