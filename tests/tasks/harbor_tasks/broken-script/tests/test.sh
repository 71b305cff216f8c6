#!/bin/sh
if [ "$(sh bin/join a b c)" = "a,b,c" ] && [ "$(sh bin/join)" = "" ] && [ -f /code/README ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
