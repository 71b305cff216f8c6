echo "$1 $(cat logs/*.log | grep "^ERROR $1" | wc -l)"
