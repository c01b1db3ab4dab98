"""What the ten-thousandth checkpoint costs, against the first: time, calls, bytes, store.

    python benchmarks/many_checkpoints.py [--creates 10000] [--files 10000] [--kind manual]
                                          [--directory DIR] [--json FILE]

Makes a tree of small files, a hundred to a directory, then changes one file and takes a
checkpoint, over and over, in one process. Of kind ``manual`` every snapshot stays; of kind
``run`` the default policy is in force, and old ones go. Prints the median milliseconds of the
first and of the last checkpoints, wall clock and processor, and what the store takes. A machine
is not the same after an hour: so the last ones take turns with those of a young history of an
equal tree, and the ratio is to these. At some numbers it also counts, over one period of
maintenance, the calls of the file system, the names listed, and the bytes read and written for each
checkpoint. Unlike times, these are the same on every machine. Not counted are the looks at the
files of the tree, which are made beside the seam, and parts of the index in which something is
only looked up.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from treesnap import SnapshotKind
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.handle import Handle
from treesnap.core.ops.context import context_at
from treesnap.core.ops.maintenance.space import EVERY
from treesnap.core.store.index import VERIFIED_SIZE_MAX
from treesnap.testing.doubles import RecordingFileSystem

FILES_PER_DIRECTORY = 100
MIB = 1 << 20
WARM_UP = 20
"""Checkpoints of the young history that are not measured."""


class Took(NamedTuple):
    """The time of a checkpoint."""

    ms: float
    cpu_ms: float
    """Of the processor, which others at work on the machine hardly change."""


class Checkpoints:
    """A tree that changes by a file at a time, and its checkpoints."""

    def __init__(self, place: Path, files: int, kind: SnapshotKind) -> None:
        self.root, self.store = place / "root", place / "store"
        self._files = files
        self._kind = kind
        self.number = 0
        for number in range(files):
            path = self._path(number)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"file %d\n" % number)
        self._handle = Handle(context_at(root=self.root, store_path=str(self.store)))
        self._handle.create(kind=kind)

    def _path(self, number: int) -> Path:
        return self.root / f"directory-{number // FILES_PER_DIRECTORY}" / f"file-{number}"

    def take(self) -> Took:
        """Changes one file, takes a checkpoint, and returns what the latter took."""
        self.number += 1
        self._path(self.number * 7919 % self._files).write_bytes(b"change %d\n" % self.number)
        begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
        self._handle.create(kind=self._kind)
        cpu_s = time.process_time() - begin_cpu_s
        return Took((time.perf_counter() - begin_s) * 1000, cpu_s * 1000)

    def count(self) -> dict[str, float]:
        """Takes one period of checkpoints and returns what each cost, on average."""
        recording = RecordingFileSystem()
        self._handle.context = self._handle.context._replace(fs=recording)
        for _ in range(EVERY):
            self.take()
        self._handle.context = self._handle.context._replace(fs=LocalFileSystem())
        parts = recording.calls("map", below=str(self.store / "index"))
        unread_bytes = sum(item.size_bytes for item in parts if item.size_bytes > VERIFIED_SIZE_MAX)
        totals = {
            "calls": len(recording.log),
            "names": sum(item.names for item in recording.log),
            "read_bytes": recording.read_bytes() - unread_bytes,
            "written_bytes": recording.written_bytes(),
        }
        return {"number": self.number} | {
            name: round(total / EVERY, 1) for name, total in totals.items()
        }

    def stored(self) -> dict[str, float]:
        """Returns what the store takes beside the one small file that each snapshot is."""
        files = [path for path in self.store.rglob("*") if path.is_file()]
        snapshots = [path for path in files if "snapshots" in path.parts]
        others_bytes = sum(path.stat().st_size for path in set(files) - set(snapshots))
        snapshots_bytes = sum(path.stat().st_size for path in snapshots)
        return {
            "snapshots": len(snapshots),
            "other_files": len(files) - len(snapshots),
            "snapshots_mib": round(snapshots_bytes / MIB, 2),
            "others_mib": round(others_bytes / MIB, 2),
        }


def measure(
    directory: Path | None = None,
    *,
    creates: int = 10_000,
    files: int = 10_000,
    kind: SnapshotKind = SnapshotKind.MANUAL,
    edge: int = 100,
) -> dict[str, Any]:
    """Takes checkpoints in a new directory below ``directory``, and returns the numbers.

    ``edge`` is how many of the first, the last and the young ones the medians are of.
    """
    place = Path(tempfile.mkdtemp(prefix="many-checkpoints-", dir=directory))
    try:
        checkpoints = Checkpoints(place / "old", files, kind)
        store_first = checkpoints.stored()
        first = [checkpoints.take() for _ in range(edge)]
        counts = [checkpoints.count()]
        while checkpoints.number < creates:
            checkpoints.take()
            if checkpoints.number in {1_000, 10_000, creates}:
                counts.append(checkpoints.count())
        young = Checkpoints(place / "young", files, kind)
        for _ in range(WARM_UP):
            young.take()
        turns = [(young.take(), checkpoints.take()) for _ in range(edge)]
        store_last = checkpoints.stored()
    finally:
        shutil.rmtree(place)
    times = {
        "first": first,
        "young": [item for item, _ in turns],
        "last": [item for _, item in turns],
    }
    medians = {
        f"{when}_{field}": round(statistics.median(getattr(item, field) for item in items), 2)
        for when, items in times.items()
        for field in Took._fields
    }
    return {
        "creates": creates,
        "files": files,
        "kind": kind.value,
        **medians,
        "ratio": round(medians["last_ms"] / medians["young_ms"], 3),
        "cpu_ratio": round(medians["last_cpu_ms"] / medians["young_cpu_ms"], 3),
        "counts": counts,
        "store_first": store_first,
        "store_last": store_last,
    }


def text(result: dict[str, Any]) -> str:
    """Returns the numbers for people."""
    lines = [
        "{creates:,} checkpoints ({kind}) of {files:,} files, one changed each time".format(
            **result
        ),
        "median of the first {first_ms} ms ({first_cpu_ms} ms of the processor)".format(**result),
        "in turn, of the last {last_ms} ms ({last_cpu_ms}), of a young history {young_ms} ms "
        "({young_cpu_ms}): x {ratio} (x {cpu_ratio})".format(**result),
        f"{'number':>8} {'calls':>9} {'names':>9} {'read B':>11} {'written B':>11}",
    ]
    lines += [
        "{number:8,} {calls:9,} {names:9,} {read_bytes:11,} {written_bytes:11,}".format(**row)
        for row in result["counts"]
    ]
    lines += [
        "{}: {snapshots:,} snapshots in {snapshots_mib} MiB; {others_mib} MiB in {other_files} "
        "other files".format(when, **result[f"store_{when}"])
        for when in ("first", "last")
    ]
    return "\n".join(lines)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--creates", type=int, default=10_000)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument(
        "--kind", type=SnapshotKind, choices=list(SnapshotKind), default=SnapshotKind.MANUAL
    )
    parser.add_argument("--edge", type=int, default=100)
    parser.add_argument("--directory", type=Path, help="where to work; a disk, or memory")
    parser.add_argument("--json", type=Path, help="a file for the numbers")
    options = parser.parse_args()
    result = measure(
        options.directory,
        creates=options.creates,
        files=options.files,
        kind=options.kind,
        edge=options.edge,
    )
    print(text(result))
    print(json.dumps(result))
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
