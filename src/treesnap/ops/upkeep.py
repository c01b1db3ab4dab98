"""Keeping a store small without being asked: old automatic snapshots go, then garbage.

Every :data:`EVERY` snapshots of a root, whoever made the last one removes what the
policy does not keep, and collects garbage when the packs have grown by half since the
last time. So each byte is looked at a bounded number of times, whatever the number of
snapshots. Nothing here waits for anybody: what is busy now is done next time. Nothing
here fails an operation: its snapshot is published already.

The size that is noted after a collection is a hint, and is not synced.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from treesnap.codec.envelope import FileKind, seal, unseal
from treesnap.codec.message import Fields, pack, unpack
from treesnap.errors import (
    Busy,
    Corrupt,
    StorageFull,
    StoreMissing,
    TreesnapError,
    UnsupportedFormat,
)
from treesnap.fs.durable import read_file, replace_file
from treesnap.fs.failure import error_text
from treesnap.ops.access import Opened, opened
from treesnap.ops.config import Settings, settings_of
from treesnap.store.roots import registered_roots
from treesnap.store.store import Store

if TYPE_CHECKING:
    from treesnap.ops.handle import Handle

EVERY = 32
"""How many snapshots of a root lie between two looks."""
GROWTH_BYTES_MIN = 64 << 20
"""Packs that grew by less are not worth a collection."""
ROOM_SHARE = 0.7
"""What part of the allowed size is left in use when room has to be made.

A collection leaves packs alone of which less than a fifth is waste, so that the store may
then take up to 0.7 / 0.8 of what is allowed.
"""

_Result = TypeVar("_Result")


def settings_or_defaults(handle: Handle, pair: Opened) -> Settings | None:
    """Returns what holds for the root, or None, with a remark, where it cannot be understood.

    Nothing is removed without being asked then, and nothing is limited.
    """
    try:
        return settings_of(pair)
    except TreesnapError as error:
        handle.monitor.remark(error.message)
        return None


def keep_up(handle: Handle) -> None:
    """Removes what the policy does not keep, when it is time; never raises for that.

    To be called after a snapshot of the handle's root was published, without its lock.
    """
    quiet = _impatient(handle)
    try:
        with opened(quiet, "tidy the store", recover=False) as pair:
            names = pair.store.snapshots.names(pair.root.id)
            if not names or names[0].sequence % EVERY:
                return
            settings = settings_or_defaults(handle, pair)
        if settings is None or not settings.is_automatic:
            return
        with suppress(Busy):
            _prune(quiet, settings)
        with suppress(Busy):
            _collect_when_grown(quiet)
    except (TreesnapError, OSError) as error:
        handle.monitor.remark(f"The store could not be tidied: {error_text(error)}")


def with_room(handle: Handle, attempt: Callable[[], _Result]) -> _Result:
    """Returns the outcome of an attempt; when the store is full, makes room and tries again.

    Automatic snapshots of all roots go first, as their policies allow, then garbage,
    which includes what the failed attempt left. Raises StorageFull when that does not
    help; what the attempts wrote is garbage and collected by then.
    """
    try:
        return attempt()
    except StorageFull as error:
        if not make_room(handle):
            raise
        handle.monitor.remark(f"{error.message}; room was made, and it is tried again")
    try:
        return attempt()
    except StorageFull:
        with suppress(TreesnapError, OSError):
            collect(_impatient(handle))
        raise


def make_room(handle: Handle) -> bool:
    """Removes what may go without being asked and collects; returns whether that freed space."""
    quiet = _impatient(handle)
    try:
        with opened(quiet, "tidy the store", recover=False) as pair:
            settings = settings_or_defaults(handle, pair)
            paths = registered_roots(quiet.fs, pair.store.layout)
        if settings is not None and settings.is_automatic:
            for path in paths:
                _prune_by_policy(handle, path)
            limit = settings.store_size_bytes_max
            if limit is not None:
                from treesnap.ops.prune import prune_store

                prune_store(quiet, paths, int(limit * ROOM_SHARE))
        return collect(quiet)
    except StoreMissing:  # it could not even be made
        return False
    except (TreesnapError, OSError) as error:
        handle.monitor.remark(f"The store could not be tidied: {error_text(error)}")
        return False


def collect(handle: Handle) -> bool:
    """Collects garbage and notes the size that is left; returns whether anything was freed."""
    freed_bytes = handle.gc().freed_bytes
    with opened(handle, "tidy the store", recover=False) as pair:
        _note_size(pair.store, pair.store.size_bytes())
    return freed_bytes > 0


def _prune_by_policy(handle: Handle, root_path: bytes) -> None:
    """Removes what the policy of one root does not keep, unless somebody is at work there."""
    quiet = _impatient(handle, root_path)
    with opened(quiet, "tidy the store", recover=False) as pair:
        settings = settings_or_defaults(handle, pair)
    if settings is not None and settings.is_automatic:
        with suppress(TreesnapError):  # busy, or with an interrupted restore: left as it is
            _prune(quiet, settings)


def _prune(handle: Handle, settings: Settings) -> None:
    from treesnap.ops.prune import PruneRequest, prune

    request = PruneRequest(policy=settings.policy, max_size_bytes=settings.root_size_bytes_max)
    prune(handle, request)


def _impatient(handle: Handle, root_path: bytes | None = None) -> Handle:
    """Returns a handle that waits for nobody, on the same root or another of the store."""
    return type(handle)(
        root=root_path if root_path is not None else handle.root,
        store_path=handle.store_path,
        wait_s=0.0,
        fs=handle.fs,
        clock_ns=handle.clock_ns,
    )


def _collect_when_grown(handle: Handle) -> None:
    with opened(handle, "tidy the store", recover=False) as pair:
        size_bytes = pair.store.size_bytes()
        collected_bytes = _noted_size(pair.store)
    if size_bytes >= collected_bytes + max(GROWTH_BYTES_MIN, collected_bytes // 2):
        collect(handle)


def _noted_size(store: Store) -> int:
    """Returns the size after the last collection, or 0 when nobody noted it."""
    path = store.layout.collected_size
    try:
        payload = unseal(read_file(store.fs, path, 1 << 10), FileKind.COLLECTED_SIZE, path)
        return Fields(unpack(payload, "size"), "size").size("size_bytes")
    except (FileNotFoundError, Corrupt, UnsupportedFormat):
        return 0


def _note_size(store: Store, size_bytes: int) -> None:
    replace_file(
        store.fs,
        store.layout.collected_size,
        seal(FileKind.COLLECTED_SIZE, pack({"size_bytes": size_bytes})),
        temporary=store.layout.temporary,
        durable=False,
    )
