"""Putting the epoch back when the collector state is lost.

The epoch orders writers and collections that live at the same time. A writer may
publish while the epoch is at most one higher than at its beginning. So an epoch far
beyond that of any writer is safe: who is at work does its capture again, and who begins
later relies on nothing that a collection may have condemned before.
"""

from __future__ import annotations

from treesnap.errors import Busy, Corrupt, UnsupportedFormat
from treesnap.fs.base import FileSystem
from treesnap.store.collector import CollectorState, read_state, write_state
from treesnap.store.layout import Layout
from treesnap.store.quarantine import Quarantine
from treesnap.store.slot import acquire, notes
from treesnap.store.store import Store

LEAP = 1 << 32
"""More than all collections between two notes of the epoch can raise it."""
_EPOCH_MAX = 1 << 62


def oldest_epoch_possible(fs: FileSystem, layout: Layout) -> int:
    """Returns the highest epoch that a writer at work has seen; the present one is no lower."""
    return max((epoch for epoch, _, is_busy in notes(fs, layout) if is_busy), default=0)


def rebuild_state(store: Store) -> str | None:
    """Writes a new state beyond any epoch that a writer can know. Costs two syncs.

    The caller holds the collector's lock, so that nothing is condemned meanwhile. Raises
    Busy while a writer is at work of which nobody can tell when it began. The highest epoch is
    noted in a slot as well, for the next time.
    """
    fs, layout = store.fs, store.layout
    needed = 0
    for epoch, _, is_busy in notes(fs, layout):
        if is_busy and not epoch:
            raise Busy("A writer is at work; repair the collector state when it has ended")
        needed = max(needed, epoch)
    try:
        state = read_state(fs, layout)
        if state.epoch >= oldest_epoch_possible(fs, layout):
            return None
        needed = max(needed, state.epoch)
    except (Corrupt, UnsupportedFormat):
        pass
    epoch = min(needed + LEAP, _EPOCH_MAX)
    kept = Quarantine(fs, layout).keep_copy(layout.collector_state)
    write_state(fs, layout, CollectorState(epoch=epoch))
    slot = acquire(fs, layout)
    try:
        slot.write(epoch, slot.read()[1])
    finally:
        slot.release()
    return f"Wrote a new collector state; the damaged one is {kept}"
