"""Hides the processes that ran before the tests.

Each snapshot and each restore looks at every process of the machine, which took a tenth of the
suite's time on one with a hundred. None of those that ran before uses a file of a test; tests
about the list itself look at all, with the fixture ``every_process``.
"""

from __future__ import annotations

import os

from treesnap.core.fs import processes

all_names = processes.process_names


def hide_older_processes() -> None:
    """Lets operations in this process and its children see it and what started later."""
    older = set(all_names()) - {str(os.getpid())}

    def younger_names() -> list[str]:
        names = all_names()
        older.intersection_update(names)  # the id of one that ended may be given again
        return [name for name in names if name not in older]

    processes.process_names = younger_names
