"""The key slots of a remote as files: on its server, as this store kept them, or as exported.

A slot is small, and everything is lost without one. So a store keeps each slot that it read whole,
as it is on the server, where it opens nothing without its secret. Which one a reader takes:

    that of the server, or its copy       always
    one that was kept                     where the server shows that slot and it is damaged; any
                                          of them where the server shows no whole slot at all
    one that a person exported            where that person says so

A slot that was removed because its secret is known to a thief must not come back by itself: that
is why one which is merely gone does not count while others are there. Keys that are older than
those a store remembers are refused, wherever the slot came from.
"""

from __future__ import annotations

import functools
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Self

from treesnap.core.model.errors import (
    Corrupt,
    ErrorCode,
    InvalidArgument,
    RemoteLocked,
    UnsupportedFormat,
)
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.remote.blobs.base import BlobMissing
from treesnap.remote.cache import FileCache
from treesnap.remote.copies import Doubled
from treesnap.remote.keys import (
    REMOTE_ID_SIZE,
    SLOT_SIZE_MAX,
    SLOTS_MAX,
    OpenedSlot,
    RemoteFile,
    Secret,
    SlotHeader,
    open_slots,
    slot_header,
)

FOLDER = "keys/"
_LAST_USED = "slot"
"""What is kept under this name is the name of the slot that was opened last."""
_TITLE = "treesnap key slots of the remote "
_LINE_SIZE = 64


class KeySlots:
    """The slots of one remote."""

    def __init__(
        self,
        blobs: Doubled,
        cache: FileCache | None = None,
        exported: Mapping[str, bytes] | None = None,
    ) -> None:
        self._blobs = blobs
        self._cache = cache
        self._exported = exported or {}
        self._used: RemoteFile | None = None

    def read(self) -> dict[str, bytes]:
        """Returns all that the server shows; one that is damaged everywhere as no bytes at all."""
        slots = {}
        for number, blob in enumerate(self._blobs.list(FOLDER)):
            if number >= SLOTS_MAX:
                raise Corrupt(
                    f"The remote has more than {SLOTS_MAX} key slots", code=ErrorCode.REMOTE_DAMAGED
                )
            with suppress(BlobMissing):  # it was removed meanwhile
                slots[blob.name] = self._slot(blob.name)
        return slots

    def headers(self) -> dict[str, SlotHeader]:
        """Returns what the slots of the server show without a secret; raises Corrupt."""
        return {name: slot_header(name, data) for name, data in self.read().items()}

    def open(self, secret: Callable[[], Secret], remote_id: bytes) -> OpenedSlot:
        """Returns the slot that a secret opens; raises RemoteLocked, Corrupt, UnsupportedFormat."""
        shown = self.read()
        slots = {**self._exported, **shown}
        if not any(shown.values()):
            slots |= {name: data for name in self._kept_names() if (data := self._kept(name))}
        for name, data in self._exported.items():
            slots[name] = slots[name] or data
        if not slots:
            raise Corrupt("The remote has no key slot", code=ErrorCode.REMOTE_DAMAGED)
        opened = open_slots(slots, secret(), remote_id)
        if opened.name not in shown:
            self._blobs.mended[opened.name] = "it is missing"
        self._use(opened.name, slots[opened.name])
        return opened

    def open_last_used(self, secret: Callable[[], Secret], remote_id: bytes) -> OpenedSlot | None:
        """Returns the slot that was opened last time, or None where it cannot be."""
        name = self._cache.get(_LAST_USED) if self._cache is not None else None
        if name is None:
            return None
        with suppress(BlobMissing, Corrupt, RemoteLocked, UnsupportedFormat):
            slot = self._slot(name.decode())
            opened = open_slots({name.decode(): slot}, secret(), remote_id)
            self._used = RemoteFile(opened.name, slot)
            return opened
        return None

    def forget_last_used(self) -> None:
        """Lets the next command try all slots: the same secret may open another one."""
        if self._cache is not None:
            self._cache.keep_only((_LAST_USED,), ())

    def keep_in(self, cache: FileCache) -> None:
        """Keeps the slot in use, where nothing could be kept before."""
        self._cache = cache
        if self._used is not None:
            self._use(*self._used)

    def write(self, slot: RemoteFile) -> None:
        """Writes a new slot, durably."""
        self._blobs.put(slot.name, slot.data)
        self._keep(slot.name, slot.data)

    def remove(self, names: Iterable[str]) -> bool:
        """Removes slots; returns whether the server did."""
        names = list(names)
        if self._cache is not None:
            kept = [name for name in self._cache.names(FOLDER[:-1]) if name not in names]
            self._cache.keep_only((FOLDER[:-1],), kept)
        return not self._blobs.delete(names)

    def mend(self) -> tuple[str, ...]:
        """Writes slots again of which a copy is whole, and the one in use if it was kept alone.

        Returns which it wrote; durable after return. Raises RemoteFailed.
        """
        names = {blob.name for blob in self._blobs.list(FOLDER)}
        if self._used is not None and self._used.name in self._blobs.mended:
            names.add(self._used.name)
        return self._blobs.mend(sorted(names), _whole, self._kept)

    def _slot(self, name: str) -> bytes:
        try:
            data = self._blobs.read(
                name,
                functools.partial(_whole, name),
                SLOT_SIZE_MAX,
                functools.partial(self._kept, name),
            )
        except Corrupt:
            return b""
        self._keep(name, data)
        return data

    def _use(self, name: str, data: bytes) -> None:
        self._used = RemoteFile(name, data)
        self._keep(name, data)
        if self._cache is not None:
            self._cache.put(_LAST_USED, name.encode())

    def _keep(self, name: str, data: bytes) -> None:
        if self._cache is not None and self._cache.get(name) != data:
            self._cache.put(name, data)

    def _kept_names(self) -> list[str]:
        return self._cache.names(FOLDER[:-1]) if self._cache is not None else []

    def _kept(self, name: str) -> bytes | None:
        kept = self._cache.get(name) if self._cache is not None else None
        if kept is None and self._used is not None and self._used.name == name:
            kept = self._used.data
        return kept if kept is not None else self._exported.get(name)


def _whole(name: str, data: bytes) -> bytes:
    with suppress(UnsupportedFormat):  # of a later version
        slot_header(name, data)
    return data


class ExportedSlots(NamedTuple):
    """Slots that a person keeps elsewhere."""

    remote_id: bytes
    slots: Mapping[str, bytes]

    def to_text(self) -> str:
        """Returns them as lines that can be kept, and printed, anywhere."""
        lines = [_TITLE + self.remote_id.hex()]
        for name, data in sorted(self.slots.items()):
            text = b64encode(data).decode("ascii")
            pieces = (text[at : at + _LINE_SIZE] for at in range(0, len(text), _LINE_SIZE))
            lines += ["", name, *pieces]
        return "\n".join(lines)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Returns the slots in a text; those that were changed are left out.

        Raises InvalidArgument where none is left.
        """
        title, *parts = re.split(r"\n\s*\n", text.strip())
        match = re.fullmatch(_TITLE + f"([0-9a-f]{{{2 * REMOTE_ID_SIZE}}})", title.strip())
        if match is None:
            raise InvalidArgument("This text does not hold the key slots of a remote")
        slots = {}
        for part in parts[:SLOTS_MAX]:
            with suppress(ValueError, Corrupt):
                name, *encoded = part.split()
                slots[name] = _whole(name, b64decode("".join(encoded), validate=True))
        if not slots:
            raise InvalidArgument("No key slot in this text is whole")
        return cls(bytes.fromhex(match[1]), slots)
