#!/bin/sh
# The main job on a sample directory: capture it, damage it, see what changed,
# get it back. Makes everything below one temporary directory, store included,
# and removes it at the end.
set -eu

PATH=$(cd "$(dirname "$0")/.." && pwd)/.venv/bin:$PATH
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
export SNAP_STORE="$place/store"

show() {
    printf '\n$ %s\n' "$*"
    "$@"
}

mkdir -p "$place/garden/photos" "$place/garden/empty"
cd "$place/garden"
printf 'tomatoes\nbeans\npeas\n' >plan.txt
head -c 300000 /dev/urandom >photos/bed.raw
printf '#!/bin/sh\necho water\n' >water.sh
chmod 750 water.sh
ln -s plan.txt today
cp -a . "$place/copy"

echo "A sample directory with a text, a photo, a script, a link and an empty directory:"
show ls -l

show snap create -m before-clean-up

echo
echo "Damage: an edited file, a deleted directory, a changed mode, a stray file."
show sed -i s/beans/weeds/ plan.txt
show rm -r photos empty
show chmod 600 water.sh
show touch stray.tmp

show snap diff --name-status
show snap diff

show snap restore latest
show diff -r --no-dereference "$place/copy" "$place/garden"
[ "$(stat -c '%a %Y' water.sh)" = "$(stat -c '%a %Y' "$place/copy/water.sh")" ]

echo
echo "Everything is back, including modes and times. A restore can be undone, too:"
show snap undo
show cat plan.txt
show snap redo

diff -r --no-dereference "$place/copy" "$place/garden"
echo
echo "Done: the directory is identical to the copy made before the damage."
