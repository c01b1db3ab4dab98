"""What a store of a million objects costs: a list, and a collection of a tenth of it.

    python benchmarks/large_store.py [--objects 1000000] [--rounds 15] [--directory DIR]

Makes a store of small chunks in snapshots of 10,000 files each, through the writer itself.
Prints the time of `snap list` as a process against `python -c 'import click'`, in turn;
then deletes the oldest tenth of the snapshots, collects in a process of its own, and prints
its seconds and the most memory that it took.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from treesnap.core.codec.tree import put_tree
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.handle import Handle
from treesnap.core.model.entries import Entry, EntryKind, ObjectKind, Totals
from treesnap.core.model.snapshots import SnapshotRecord
from treesnap.core.ops.context import context_at
from treesnap.core.store.store import Store
from treesnap.core.store.writer import Writer

FILES = 9_996
"""Files of a snapshot, each of one chunk; a tree of as many entries is four objects."""

COLLECT = """
import json, resource, sys, time
from treesnap.core.handle import Handle
from treesnap.core.ops.context import context_at

begin_s = time.perf_counter()
result = Handle(context_at(root=sys.argv[1], store_path=sys.argv[2], wait_s=0)).gc()
print(json.dumps({
    "seconds": time.perf_counter() - begin_s,
    "memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    "removed": result.removed_objects,
    "kept": result.kept_objects,
    "freed_mib": result.freed_bytes / 2**20,
    "packs": result.removed_packs + result.rewritten_packs,
}))
"""


def fill(root: Path, store_path: Path, objects: int) -> list[str]:
    """Publishes snapshots until the store holds so many objects; returns their names."""
    names = []
    handle = Handle(context_at(root=root, store_path=str(store_path)))
    handle.create(name="empty")
    root_id = next(path.name for path in (store_path / "snapshots").iterdir())
    with Store.open(LocalFileSystem(), str(store_path)) as store:
        for number in range(objects // (FILES + 4)):
            with Writer(store) as writer:
                entries = []
                totals = Totals(files=FILES, size_bytes=32 * FILES)
                for position in range(FILES):
                    data = struct.pack("<QQ", number, position) * 4
                    chunk = writer.put(ObjectKind.CHUNK, data)
                    content = (0, chunk, len(data))
                    name = b"file-%04d" % position
                    entries.append(
                        Entry(name, EntryKind.FILE, 0o644, 0, 0, 0, len(data), content, None)
                    )
                tree_id = put_tree(entries, totals, writer.put)
                names.append(f"snapshot-{number}")
                record = SnapshotRecord(
                    root=Entry(b"", EntryKind.DIRECTORY, 0o755, 0, 0, 0, 0, tree_id, None),
                    links=None,
                    root_path=os.fsencode(root),
                    created_at_ns=time.time_ns(),
                    totals=totals,
                    name=names[-1],
                )
                writer.publish(record, root_id, number + 2)
    return names


def seconds_of(command: list[str], environment: dict[str, str]) -> float:
    """Returns how long a process takes."""
    begin_s = time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin_s


def compare_list(root: Path, store: Path, rounds: int) -> None:
    """Prints how long a list takes, and the import of click, one after the other."""
    environment = {
        **os.environ,
        "SNAP_STORE": str(store),
        "PYTHONPYCACHEPREFIX": str(store.parent / "bytecode"),
        "PYTHONDONTWRITEBYTECODE": "",  # an installed package has its bytecode
    }
    commands = {
        "snap list": [sys.executable, "-m", "treesnap", "-C", str(root), "list"],
        "python -c 'import click'": [sys.executable, "-c", "import click"],
    }
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name, command in commands.items():
            taken_s = seconds_of(command, environment)
            if number:  # the first writes the bytecode
                taken[name].append(taken_s)
    medians = {name: statistics.median(values) for name, values in taken.items()}
    for name, median_s in medians.items():
        print(f"{name:26} {median_s * 1000:8.1f} ms")
    first, second = medians.values()
    print(f"{'ratio':26} {first / second:8.2f}")


def collect(root: Path, store: Path) -> None:
    """Prints what a collection in a process of its own costs."""
    done = subprocess.run(
        [sys.executable, "-c", COLLECT, str(root), str(store)],
        check=True,
        capture_output=True,
        text=True,
    )
    for name, value in json.loads(done.stdout).items():
        print(f"gc {name:23} {value:10.1f}")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--objects", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="large-", dir=options.directory))
    try:
        root, store = place / "root", place / "store"
        root.mkdir()
        names = fill(root, store, options.objects)
        compare_list(root, store, options.rounds)
        Handle(context_at(root=root, store_path=str(store))).delete(*names[: len(names) // 10])
        collect(root, store)
        print("again, without garbage:")
        collect(root, store)
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
