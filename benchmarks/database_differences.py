"""How long the rows of many small databases take to compare.

``python -m benchmarks.database_differences`` prints it.
"""

from __future__ import annotations

import resource
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import treesnap

DATABASES = 30
ROUNDS = 3


def write(root: Path, statement: str) -> None:
    """Has each of the databases execute a statement."""
    for number in range(DATABASES):
        with closing(sqlite3.connect(root / f"{number}.db", isolation_level=None)) as database:
            database.execute(statement)


def processor_s() -> float:
    """Returns the processor time of the processes that ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Prints the shortest of some rounds."""
    with TemporaryDirectory() as place:
        root = Path(place, "root")
        root.mkdir()
        write(root, "CREATE TABLE items (name)")
        handle = treesnap.open(root, Path(place, "store"))
        first = handle.create().id
        write(root, "INSERT INTO items VALUES ('one')")
        changes = handle.diff(first)
        measured = []
        for _ in range(ROUNDS):
            begin_s, used_s = time.perf_counter(), processor_s()
            shown = list(handle.contents(first, None, changes, as_text=True))
            assert all(item.converted_by for item in shown)
            measured.append((time.perf_counter() - begin_s, processor_s() - used_s))
        wall_s, used_s = min(measured)
        print(f"{len(shown)} databases: {wall_s:.2f} s, {used_s:.2f} s of other processes")


if __name__ == "__main__":
    main()
