#!/bin/sh
# Makes an image of a file system on a Mac, and mounts it: TYPE SIZE PLACE.
# "Resource busy" is what hdiutil says now and then while the system looks at the last one.
set -eu
mkdir -p "$3"
for pause in 5 10 20 40; do
    if hdiutil create -ov -size "$2" -fs "$1" -volname tried "$3.dmg"; then
        hdiutil attach "$3.dmg" -nobrowse -mountpoint "$3"
        exit
    fi
    sleep "$pause"
done
exit 1
