#!/bin/sh
# A hook that keeps what it is given: recorder.sh DIRECTORY EVENT
name="$1/$(date +%s%N)-$2"
cat > "$name.json"
env > "$name.environ"
ls -A > "$name.ls"
