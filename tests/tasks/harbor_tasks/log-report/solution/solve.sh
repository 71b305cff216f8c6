#!/bin/sh
set -e
sh /solution/count.sh mail > report.txt
sh /solution/count.sh web >> report.txt
