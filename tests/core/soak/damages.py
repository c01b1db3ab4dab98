"""Damage that is done to the store on purpose, and what it may cost.

It hits a block with content that one root alone has, so the others must lose nothing. Three
ways are left to get it back, or none: then that root's snapshot may be lost, and no other.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random

from soak.ledger import Line, Log
from treesnap.core.codec.pack import Block
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.handle import Handle
from treesnap.core.model.errors import Busy, Corrupt, NotFound, TreesnapError
from treesnap.core.model.results import Problem
from treesnap.core.model.snapshots import SnapshotId
from treesnap.core.store.fence import collector_kept_out
from treesnap.core.store.maintenance.reachability import Reachability
from treesnap.core.store.store import Store

TREE, SECOND, LOST = "in the live tree", "in a second copy", "nowhere"
"""Where what is damaged is still found."""
NOTHING = "not damaged"
OF_DAMAGE = frozenset({"bad-pack", "damaged-object", "missing-object"})
"""What a check says of damaged packs."""
WAIT_S = 5.0
"""How long a collection is waited for."""
REPAIRS_MAX = 5
"""Repairs that may meet what was appended or damaged meanwhile, before the store is in order."""


class Damages:
    """What was damaged, and whether it was mended since."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "damaged"
        self.log = Log(directory / "ledger" / "damages.log")

    def doing(self) -> Line | None:
        """Returns the damage that is not mended yet, or None."""
        lines = self.log.lines()
        return lines[-1] if lines and lines[-1]["what"] == "doing" else None

    def mark(self) -> int:
        """Returns what :meth:`unexpected` needs to know of when a check began."""
        lines = self.log.lines()
        return len(lines) - 1 if self.doing() is not None else len(lines)

    def is_around(self, mark: int) -> bool:
        """Returns whether there was any damage since a mark."""
        return len(self.log.lines()) > mark

    def unexpected(self, problems: Iterable[Problem], mark: int) -> Iterator[Problem]:
        """Yields what a check that began at a mark found, but for damage that was done."""
        around = self.is_around(mark)
        own = self.snapshots()
        for problem in problems:
            if not (around and problem.code in OF_DAMAGE and own.issuperset(problem.snapshot_ids)):
                yield problem

    def snapshots(self) -> set[str]:
        """Returns the snapshots that were ever damaged."""
        return {line["id"] for line in self.log.lines() if line["what"] == "doing"}

    def do(self, handle: Handle, random: Random, where: str) -> str:
        """Captures new content and damages it; returns where it is still to be had.

        Or that nothing was damaged, because a collection was faster.
        """
        content = random.randbytes(random.randrange(20_000, 200_000))
        (self.root / "file").write_bytes(content)
        older = [one.id for one in handle.list()]
        made = handle.create(label=where).id
        if older:
            handle.delete(*older)
        digest = hashlib.sha256(content).hexdigest()
        self.log.add(what="doing", id=made, where=where, digest=digest)
        if not _flip(handle, made, where, random):
            self.log.add(what="mended")
            return NOTHING
        if where == LOST:
            (self.root / "file").write_bytes(b"something else")
        return where

    def is_whole(self, handle: Handle, line: Line) -> bool:
        """Returns whether what was damaged can be read, wherever it comes from."""
        try:
            content = b"".join(handle.cat(line["id"], "file"))
        except Corrupt:
            return False
        return hashlib.sha256(content).hexdigest() == line["digest"]

    def mend(self, handle: Handle, line: Line) -> Iterator[str]:
        """Repairs the store; yields what should have come back, and what is damaged for ever."""
        if line["where"] == LOST:
            with suppress(NotFound):  # a mender that was killed had come so far
                handle.delete(line["id"])
        for _ in range(REPAIRS_MAX):
            left = handle.verify(read_data=True, repair=True).left
            if not left:
                break
        yield from (f"not repaired: {problem}" for problem in left)
        if line["where"] != LOST:
            yield from self.lost(handle, line)
        self.log.add(what="mended")

    def lost(self, handle: Handle, line: Line) -> Iterator[str]:
        """Yields that a snapshot is lost which was not to be."""
        try:
            if not self.is_whole(handle, line):
                yield f"{line['id']} was not mended, though its content is {line['where']}"
        except TreesnapError as error:
            yield f"{line['id']} was damaged, and is gone: {error}"

    def end(self, handle: Handle, store: Path) -> Iterator[str]:
        """Mends what is left, and forgets the root; yields what is wrong."""
        line = self.doing()
        if line is not None:
            yield from self.mend(handle, line)
        if self.log.lines():
            handle.root_forget(self.root, force=True)
            for pack in store.glob("quarantine/packs.*"):  # what was damaged counts for nothing
                pack.unlink()


def _flip(handle: Handle, made: SnapshotId, where: str, random: Random) -> bool:
    """Changes a byte of a block in which nothing lies but what one snapshot needs.

    One of two copies is damaged beside no collection: it may have chosen that one before.
    """
    with ExitStack() as stack:
        store = stack.enter_context(Store.open(LocalFileSystem(), handle.context.store_path))
        if where == SECOND:
            try:
                stack.enter_context(
                    collector_kept_out(store.fs, store.layout, operation="damage", wait_s=WAIT_S)
                )
            except Busy:
                return False
        root = store.root(os.fsencode(handle.context.root))
        name = store.snapshots.listing(root.id).find(made)
        if name is None:
            return False
        record = store.snapshots.load(root.id, name).record
        own = {each.id for each in Reachability(store).add(record)}
        # a set: beside a merge of parts the index knows one place twice
        places = {identity: set(store.index.find_all(identity)) for identity in own}
        blocks: dict[Block, bool] = {}
        for found in places.values():
            for entry in found:
                blocks[entry.block] = blocks.get(entry.block, True) and len(found) > 1
        chosen = [block for block, is_twice in blocks.items() if is_twice == (where == SECOND)]
        random.shuffle(chosen)
        for block in chosen:
            try:
                entries = store.inventory(block.pack_id).entries
                if own.issuperset(entry.id for entry in entries if entry.block == block):
                    return _flip_byte(store.layout.pack(block.pack_id), block, random)
            except FileNotFoundError:
                continue  # a collection rewrote the pack meanwhile
    return False


def _flip_byte(path: str, block: Block, random: Random) -> bool:
    fd = os.open(path, os.O_RDWR)
    try:
        position = block.offset + random.randrange(block.size)
        (byte,) = os.pread(fd, 1, position)
        os.pwrite(fd, bytes([byte ^ random.randrange(1, 256)]), position)
    finally:
        os.close(fd)
    return True
