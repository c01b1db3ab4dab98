"""The fence of a store: how a process that takes something away keeps out of others' way.

Announce, fence, look again, act. Say where others look before they rely on something; pass a
fence, behind which every process that relied on it before is visible or will withdraw; decide
by what is there now; only then take away. What was seen before the fence does not count.

Packs are relied on without a lock, so an epoch is their fence, and :meth:`Maintaining.retire` is
the only way by which one is removed or moved. Its proof is that of
``collector``. Small files are judged under the lock of the processes that rely
on them.
The whole store has a gate: see :mod:`treesnap.core.store.lock`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from errno import EROFS

from treesnap.core.codec.pack import Block, filler
from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.durable import (
    is_there,
    open_lock,
    open_regular,
    read_file,
    replace_file,
    unlink_if_present,
    write_all_at,
)
from treesnap.core.model.errors import Busy, Corrupt
from treesnap.core.store.collector import (
    CollectorState,
    oldest_epoch_possible,
    read_state,
    write_state,
)
from treesnap.core.store.layout import Layout
from treesnap.core.store.lock import held
from treesnap.core.store.quarantine import Quarantine
from treesnap.core.store.reserve import Reserve
from treesnap.core.store.store import FORMAT_NEVER, FORMAT_SIZE_MAX, Store
from treesnap.core.store.writer_slot import slot_states

DRAIN_WAIT_S = 2.0
"""How long to wait for older writers at most, so that they need not capture again."""
_PAUSE_S = 0.02


class Maintaining:
    """The power to take packs away; :func:`maintain` alone makes it."""

    def __init__(self, store: Store, *, wait_s: float) -> None:
        self._store = store
        self._fs = store.writing_fs
        self._wait_s = wait_s
        self._has_condemned = False
        self._gone: frozenset[bytes] = frozenset()
        """Condemned packs that do not exist any more; the index may still name them."""
        self.reserve: Reserve = Reserve(self._fs, store.layout)

    def retire(
        self,
        packs: frozenset[bytes],
        settle: Callable[[], frozenset[bytes]],
        to: Quarantine | None = None,
    ) -> frozenset[bytes]:
        """Removes packs, or moves them to quarantine; returns those that went.

        What is needed of them is durable elsewhere before. ``settle`` is called behind the
        fence, when no writer can begin to rely on them any more: it looks again, copies what
        came to be needed meanwhile if it likes, and returns which may go. None goes when it
        raises. Removing is not synced: a pack that a power cut brings back is collected again.

        The epoch is raised beyond that of every writer at work, so that an old state that was
        copied back misleads none of them.
        """
        store = self._store
        self._pass_fence(packs)
        going = settle() & packs
        for pack_id in sorted(going):
            path = store.layout.pack(pack_id)
            if to is None:
                unlink_if_present(self._fs, path)
            else:
                with suppress(FileNotFoundError):
                    to.take(path)
            self._gone |= {pack_id}
        store.packs.close()  # a file takes room for as long as it is open
        return going

    def empty(
        self, packs: frozenset[bytes], settle: Callable[[], Mapping[bytes, Sequence[Block]]]
    ) -> int:
        """Gives back the space of blocks of packs that nothing needs; returns how many bytes.

        For a disk that is too full to rewrite the packs. ``settle`` is called behind the fence, as
        :meth:`retire` does it, and returns the blocks that may go, by pack. In the place of each
        is a block of zeros afterwards, which is a hole. A power cut in the middle of that may leave
        damage in the block, which nothing needs. Raises OSError where no hole can be made; then
        the packs are as they were, or hold blocks of zeros that take as much room as before.
        """
        self._pass_fence(packs)
        emptied_bytes = 0
        for pack_id, blocks in settle().items():
            if pack_id in packs and blocks:
                path = self._store.layout.pack(pack_id)
                try:
                    fd = open_regular(self._fs, path, os.O_RDWR, by_one_name=True)
                except Corrupt:
                    continue
                try:
                    emptied_bytes += self._empty_blocks(fd, blocks)
                finally:
                    self._fs.close(fd)
        self._store.packs.close()
        return emptied_bytes

    def _empty_blocks(self, fd: int, blocks: Sequence[Block]) -> int:
        fs, step = self._fs, max(1, self._fs.fstat(fd).st_blksize)
        holes = []
        for block in blocks:
            head, end = filler(block.size), block.offset + block.size
            if head is None:
                continue
            start = -(-(block.offset + len(head)) // step) * step
            stop = max(start, end // step * step)
            if stop == start:
                continue
            write_all_at(fs, fd, head.ljust(start - block.offset, b"\0"), block.offset)
            write_all_at(fs, fd, bytes(end - stop), stop)
            holes.append((start, stop - start))
        fs.sync_data(fd)  # a block of zeros is whole before what was in it goes
        for start, size_bytes in holes:
            fs.punch_hole(fd, start, size_bytes)
        fs.sync_data(fd)
        return sum(size_bytes for _, size_bytes in holes)

    def _pass_fence(self, packs: frozenset[bytes]) -> None:
        """Condemns packs, and passes the fence behind which no writer can begin to rely on them."""
        store = self._store
        seen = oldest_epoch_possible(self._fs, store.layout)
        state = read_state(self._fs, store.layout)
        self._note_gone(state)
        condemned = packs | self._gone
        epoch = max(state.epoch, seen) + 1
        self._has_condemned = True
        self._write_state(CollectorState(epoch=epoch, condemned=condemned))
        self._let_writers_finish(epoch)
        self._write_state(CollectorState(epoch=epoch + 1, condemned=condemned))
        store.index.refresh()
        store.packs.close()  # what was read of them before may be less than there is now

    def finish(self) -> None:
        """Lets writers rely again on all packs that still exist, and takes the others out of the
        index.

        Where there is no room for that, or another process does not let go of the index, they stay
        condemned: a pack that only the index knows of would count as lost.
        """
        left = frozenset[bytes]()
        self._note_gone(read_state(self._fs, self._store.layout))
        try:
            self.reserve.retry_without_reserve(
                lambda: self._store.index.forget(self._gone, self._wait_s)
            )
        except (OSError, Busy):
            left = self._gone
        state = read_state(self._fs, self._store.layout)
        if state.condemned != left:
            self._write_state(CollectorState(epoch=state.epoch, condemned=left))
        self._has_condemned = False

    def _note_gone(self, state: CollectorState) -> None:
        """Notes what was condemned and is gone, also by one that was killed before it could tell
        the index.
        """
        layout = self._store.layout
        self._gone |= {
            pack_id for pack_id in state.condemned if not is_there(self._fs, layout.pack(pack_id))
        }

    def close(self) -> None:
        """Does the same where :meth:`finish` was not reached, as far as that is possible."""
        if self._has_condemned:
            with suppress(OSError, Corrupt):
                self.finish()

    def _write_state(self, state: CollectorState) -> None:
        self.reserve.retry_without_reserve(lambda: write_state(self._fs, self._store.layout, state))

    def _let_writers_finish(self, epoch: int) -> None:
        """Waits a little for writers of an older epoch; correctness does not need it."""
        deadline = time.monotonic() + min(DRAIN_WAIT_S, self._wait_s)
        while self._has_older_writer(epoch) and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)

    def _has_older_writer(self, epoch: int) -> bool:
        states = slot_states(self._fs, self._store.layout)
        return any(state.is_busy and state.epoch < epoch for state in states)


class CollectorHeld:
    """The proof that this process holds the collector's lock; made here alone."""


@contextmanager
def collector_held(
    fs: FileSystem, layout: Layout, *, operation: str, wait_s: float
) -> Iterator[CollectorHeld]:
    """Keeps all others out that take packs away or move the store; raises Busy.

    Take it before the gate of the store: who moves a store waits with this lock until all who
    are inside have left.
    """
    lock_path = layout.collector_lock
    Reserve(fs, layout).retry_without_reserve(lambda: fs.close(open_lock(fs, lock_path)))
    what = "The garbage collector"
    with held(fs, lock_path, operation=operation, what=what, wait_s=wait_s):
        yield CollectorHeld()


@contextmanager
def collector_kept_out(
    fs: FileSystem, layout: Layout, *, operation: str, wait_s: float
) -> Iterator[None]:
    """Does the same for a process that changes nothing, also in a store that is mounted read-only.

    Such a file system may be mounted writable at another place, where processes have the same lock.
    Where there is no lock file, no process has collected yet; a collection that begins is not
    kept out then.
    """
    with ExitStack() as lock:
        try:
            lock.enter_context(collector_held(fs, layout, operation=operation, wait_s=wait_s))
        except OSError as error:
            if error.errno != EROFS:
                raise
            path, what = layout.collector_lock, "The garbage collector"
            with suppress(FileNotFoundError):
                lock.enter_context(
                    held(
                        fs,
                        path,
                        operation=operation,
                        what=what,
                        wait_s=wait_s,
                        open_file=open_regular,
                    )
                )
        yield


@contextmanager
def maintain(store: Store, proof: CollectorHeld, *, wait_s: float) -> Iterator[Maintaining]:
    """Gives the power over packs while the body runs.

    What was condemned and is still there does not stay condemned.
    """
    del proof
    maintaining = Maintaining(store, wait_s=wait_s)
    try:
        yield maintaining
    finally:
        maintaining.close()


def mark_moved(fs: FileSystem, left: Layout, path: str) -> None:
    """Says in what a move left, durably, that it is only read, and where the store is.

    The caller has closed the gate. Readers of this version and of others still read it.
    """
    import json

    fields = json.loads(read_file(fs, left.format, FORMAT_SIZE_MAX))
    fields |= {"format": FORMAT_NEVER, "min_writer": FORMAT_NEVER, "moved_to": path}
    content = json.dumps(fields, indent=2).encode() + b"\n"
    replace_file(fs, left.format, content, temporary=left.temporary)
