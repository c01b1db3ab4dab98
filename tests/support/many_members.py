"""Archives of many members, made while they are read, and what an import of one costs.

Run by its path it imports one in a process of its own, and prints how far memory grew.
"""

from __future__ import annotations

import os
import sys
import tarfile
from collections.abc import Iterable, Iterator
from itertools import chain
from resource import RUSAGE_SELF, getrusage

import treesnap


class Generated:
    """An archive that is made while it is read."""

    def __init__(self, members: Iterable[tarfile.TarInfo]) -> None:
        self._pieces = chain((member.tobuf() for member in members), [bytes(1024)])
        self._rest = b""

    def read(self, size: int, /) -> bytes:
        """Returns so many bytes at most, none at the end."""
        while len(self._rest) < size and (piece := next(self._pieces, None)) is not None:
            self._rest += piece
        found, self._rest = self._rest[:size], self._rest[size:]
        return found


def members(count: int, kind: str) -> Iterator[tarfile.TarInfo]:
    """Yields files in two directories in turn, or in one: pairs of links, or links to one file."""
    for number in range(count):
        directory = number % 2 if kind == "alternating" else 0
        member = tarfile.TarInfo(f"{directory}/{number:07}")
        linked = {"links": number - number % 2, "links-to-one": 0}.get(kind, number)
        if linked != number:
            member.type, member.linkname = tarfile.LNKTYPE, f"{directory}/{linked:07}"
        yield member


def main(root: str, kind: str, count: str) -> None:
    """Imports an archive, and prints how far the memory of this process grew, in bytes."""
    os.mkdir(root)
    handle = treesnap.open(root, f"{root}.store")
    handle.import_from(Generated(members(1000, kind)))
    before_kb = getrusage(RUSAGE_SELF).ru_maxrss
    handle.import_from(Generated(members(int(count), kind)))
    sys.stdout.write(f"{(getrusage(RUSAGE_SELF).ru_maxrss - before_kb) << 10}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
