#!/bin/sh
# One half for the services, the other for their counts.
reward=0
grep -q '^mail ' report.txt && grep -q '^web ' report.txt && reward=0.5
[ "$(cat report.txt)" = "$(cat /tests/expected.txt)" ] && reward=1
echo $reward > /logs/verifier/reward.txt
