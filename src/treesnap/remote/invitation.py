"""An invitation: what one writer is given, and all that it has of a remote.

    treesnap-writer-<base 32>     version u8 | algorithm u8 | generation u32 | remote id
                                  | public key of the inbox | seed of the writer | check

A writer delivers snapshots to the inbox of a remote. It signs them with the key of its seed, which
an owner put on the list of members, and encrypts them for the inbox: it can neither read nor
remove anything, and speaks for itself alone. The text is a secret, as the seed is in it.
"""

from __future__ import annotations

import os
import struct
from base64 import b32decode, b32encode
from typing import Self

from treesnap.core.model.errors import InvalidArgument
from treesnap.core.model.ids import checksum
from treesnap.remote.keys import (
    KEY_SIZE,
    REMOTE_ID_SIZE,
    Algorithm,
    GenerationKeys,
    Random,
    WriterKeys,
)

_TITLE = "treesnap-writer-"
_FIELDS = struct.Struct(f"<BBI{REMOTE_ID_SIZE}s{KEY_SIZE}s{KEY_SIZE}s")
_VERSION = 1
_CHECK_SIZE = 4


class Invitation:
    """What one writer has. Printing it shows no secret."""

    __slots__ = ("_seed", "algorithm", "generation", "inbox", "remote_id")

    def __init__(
        self, remote_id: bytes, generation: int, algorithm: Algorithm, inbox: bytes, seed: bytes
    ) -> None:
        self.remote_id = remote_id
        self.generation = generation
        self.algorithm = algorithm
        self.inbox = inbox
        """The public key that it encrypts for."""
        self._seed = seed

    @classmethod
    def new(cls, keys: GenerationKeys, remote_id: bytes, random: Random = os.urandom) -> Self:
        """Returns that of a new writer."""
        return cls(remote_id, keys.generation, keys.algorithm, keys.inbox, random(KEY_SIZE))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Returns an invitation out of its text; raises InvalidArgument."""
        data = b""
        try:
            if text.strip().startswith(_TITLE):
                data = b32decode(_padded(text.strip().removeprefix(_TITLE).upper()))
        except ValueError:
            data = b""
        del text
        fields = None
        if len(data) == _FIELDS.size + _CHECK_SIZE and _check(data) == data[_FIELDS.size :]:
            fields = _FIELDS.unpack_from(data)
        del data
        if fields is None:
            raise InvalidArgument("This is not an invitation, or it was changed")
        version, algorithm, generation, remote_id, inbox, seed = fields
        del fields
        if version != _VERSION or algorithm not in set(Algorithm):
            del seed
            raise InvalidArgument("This invitation is of a later version of treesnap")
        return cls(remote_id, generation, Algorithm(algorithm), inbox, seed)

    def to_text(self) -> str:
        """Returns the text that is given to the writer: a secret."""
        data = _FIELDS.pack(
            _VERSION, self.algorithm, self.generation, self.remote_id, self.inbox, self._seed
        )
        return _TITLE + b32encode(data + _check(data)).decode("ascii").rstrip("=").lower()

    def writer(self) -> WriterKeys:
        """Returns what the writer signs and encrypts with."""
        return WriterKeys(self._seed, self.remote_id)

    def __repr__(self) -> str:
        return f"<Invitation to {self.remote_id.hex()}>"


def _check(data: bytes) -> bytes:
    return checksum(b"treesnap invitation 1" + data[: _FIELDS.size], _CHECK_SIZE)


def _padded(text: str) -> str:
    return text + "=" * (-len(text) % 8)
