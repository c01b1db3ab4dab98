"""What `snap timeline` costs with a long history and a large difference.

    python benchmarks/timeline.py [--snapshots 100000] [--paths 1000000] [--directory DIR]

Publishes snapshots through the writer itself: small ones of one file each, and as the newest one
a snapshot with so many more paths. Then opens the timeline at 80 x 24 in the same process and
prints, for each action, its seconds, and how many records were read and lines drawn for it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import shutil
import tempfile
import time
from pathlib import Path

from treesnap.core.codec.tree import put_tree
from treesnap.core.handle import Handle
from treesnap.core.model.entries import Entry, EntryKind, ObjectKind, Totals
from treesnap.core.model.snapshots import SnapshotRecord
from treesnap.core.ops.context import context_at
from treesnap.core.store.store import Store
from treesnap.core.store.writer import Writer
from treesnap.testing.doubles import UnsyncedFileSystem
from treesnap.timeline.app import Timeline, TimelineTools
from treesnap.timeline.command import lines_of_patches
from treesnap.timeline.line_list import LineList

IN_DIRECTORY = 1000
SIZE = (80, 24)


def fill(root: Path, store_path: Path, snapshots: int, paths: int) -> None:
    """Publishes the snapshots."""
    Handle(context_at(root=root, store_path=str(store_path), fs=UnsyncedFileSystem())).create()
    root_id = next(path.name for path in (store_path / "snapshots").iterdir())

    def directory(name: bytes, tree_id: bytes) -> Entry:
        return Entry(name, EntryKind.DIRECTORY, 0o755, 0, 0, 0, 0, tree_id, None)

    def publish(writer: Writer, tree_id: bytes, totals: Totals, number: int) -> None:
        record = SnapshotRecord(
            root=directory(b"", tree_id),
            links=None,
            root_path=os.fsencode(root),
            created_at_ns=1_700_000_000_000_000_000 + number * 60_000_000_000,
            totals=totals,
            label=f"step {number}",
        )
        writer.publish(record, root_id, number)

    with Store.open(UnsyncedFileSystem(), str(store_path)) as store:
        with Writer(store) as writer:
            for number in range(2, snapshots + 1):
                entry = Entry(
                    b"file",
                    EntryKind.FILE,
                    0o644,
                    0,
                    0,
                    number,
                    3,
                    (b"%03d" % (number % 999),),
                    None,
                )
                totals = Totals(files=1, size_bytes=3)
                publish(writer, put_tree([entry], totals, writer.put), totals, number)
        with Writer(store) as writer:
            chunk = writer.put(ObjectKind.CHUNK, b"content" * 40)
            entries = []
            for outer in range(paths // IN_DIRECTORY):
                files = [
                    Entry(
                        b"file-%04d" % n,
                        EntryKind.FILE,
                        0o644,
                        0,
                        0,
                        outer,
                        280,
                        (0, chunk, 280),
                        None,
                    )
                    for n in range(IN_DIRECTORY - 1)
                ]
                totals = Totals(files=len(files), size_bytes=280 * len(files))
                entries.append(directory(b"d-%04d" % outer, put_tree(files, totals, writer.put)))
            totals = Totals(files=paths, directories=len(entries))
            publish(writer, put_tree(entries, totals, writer.put), totals, snapshots + 1)


async def look(root: Path, store_path: Path) -> None:
    """Presses keys and prints what each costs."""
    begin_s = time.perf_counter()

    def report(what: str) -> None:
        nonlocal begin_s
        memory_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{what:36} {time.perf_counter() - begin_s:8.3f} s "
            f"{app.history.records_read:8} records "
            f"{lines.lines_drawn + paths.lines_drawn:6} lines {len(app.paths):9} paths "
            f"{memory_mib:6.0f} MiB"
        )
        begin_s = time.perf_counter()

    app = Timeline(
        lambda monitor: Handle(context_at(root=root, store_path=str(store_path), monitor=monitor)),
        TimelineTools(lines_of_patches, str),
    )
    async with app.run_test(size=SIZE) as pilot:
        lines, paths = app.query_one("#history"), app.query_one("#paths")

        async def press(key: str, of: LineList, where: str) -> None:
            """Presses a key; what counts is when its list was drawn again."""
            nonlocal begin_s
            drawn, begin_s = of.lines_drawn, time.perf_counter()
            app.simulate_key(key)
            while of.lines_drawn == drawn:  # noqa: ASYNC110 - it measures the loop itself
                await asyncio.sleep(0)
            report(f"{key} {where}")

        while not lines.lines_drawn:  # noqa: ASYNC110 - it measures the loop itself
            await asyncio.sleep(0)
        report("rows on the screen")
        while not app.paths:  # noqa: ASYNC110 - it measures the loop itself
            await asyncio.sleep(0)
        report("first changed paths")
        for key in ("j", "k", "pagedown", "g"):
            await press(key, lines, "while a difference is read")
        while any(not worker.is_finished for worker in app.workers):
            await pilot.pause()
        report("all changed paths")
        paths.focus()
        for key in ("G", "g", "pagedown", "j"):
            await press(key, paths, "in the paths")
        while any(not worker.is_finished for worker in app.workers):
            await pilot.pause()
        lines.focus()
        await pilot.pause()
        for key in ("j", "G", "k", "pageup", "g"):
            await press(key, lines, "in the history")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--snapshots", type=int, default=100_000)
    parser.add_argument("--paths", type=int, default=1_000_000)
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="timeline-", dir=options.directory))
    try:
        root, store = place / "root", place / "store"
        root.mkdir()
        begin_s = time.perf_counter()
        fill(root, store, options.snapshots, options.paths)
        print(f"made in {time.perf_counter() - begin_s:.0f} s")
        asyncio.run(look(root, store))
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
