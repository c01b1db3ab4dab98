"""Scenes that many tests of a module begin with, each with one of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.store.layout import Layout
from treesnap.core.store.ownership import note_made_here


def trust_stores(directory: Path) -> None:
    """Makes copied stores below a directory the user's own again.

    Not what a power cut left of one: a proof that came to the disk before what it proves.
    """
    for made_here in directory.rglob("made-here"):
        layout = Layout(str(made_here.parent))
        if Path(layout.format).exists():
            note_made_here(LocalFileSystem(), layout)


class Prepared:
    """A directory that was made once, and is there again as it was made whenever it is asked for.

    It is always at the path where it was made, because a store knows its roots by their paths.
    """

    def __init__(self, made: Path) -> None:
        self._place = made
        self._kept = made.rename(made.with_name(f"{made.name}-as-made"))

    @contextmanager
    def placed(self) -> Iterator[Path]:
        """Puts the directory into its place for as long as the block runs."""
        shutil.copytree(self._kept, self._place, symlinks=True)
        trust_stores(self._place)
        yield self._place
        shutil.rmtree(self._place)
