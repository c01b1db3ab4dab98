"""An invitation: what a machine is given that an owner lets write to a remote.

    treesnap-writer-<base 32>     version u8 | algorithm u8 | generation u32 | remote id
    treesnap-machine-<base 32>    | public key of the inbox, or of the owner | seed | check

The key of its seed is on the list of members. A *writer* delivers snapshots to the inbox of a
remote, encrypted for that: it can neither read nor remove anything, and speaks for itself alone.
Any other machine has a key slot for its seed, which it believes if the owner has signed it. The
text is a secret, as the seed is in it.
"""

from __future__ import annotations

import os
import re
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
    OwnerKey,
    Random,
    Recipient,
    Secret,
    WriterKeys,
    key_signer,
    recipient,
)

_TITLE = re.compile(r"treesnap-(writer|machine)-(.*)\Z", re.DOTALL)
_FIELDS = struct.Struct(f"<BBI{REMOTE_ID_SIZE}s{KEY_SIZE}s{KEY_SIZE}s")
_VERSION = 1
_CHECK_SIZE = 4


class Invitation:
    """What one machine has. Printing it shows no secret."""

    __slots__ = ("_key", "algorithm", "generation", "is_writer", "remote_id", "seed")

    def __init__(
        self,
        remote_id: bytes,
        generation: int,
        algorithm: Algorithm,
        key: bytes,
        seed: bytes,
        *,
        is_writer: bool = True,
    ) -> None:
        self.remote_id: bytes = remote_id
        self.generation: int = generation
        self.algorithm: Algorithm = algorithm
        self._key = key
        self.seed: bytes = seed
        """What the keys of the machine follow from: a secret."""
        self.is_writer: bool = is_writer

    @classmethod
    def new(cls, keys: GenerationKeys, remote_id: bytes, random: Random = os.urandom) -> Self:
        """Returns that of a new writer."""
        return cls(remote_id, keys.generation, keys.algorithm, keys.inbox, random(KEY_SIZE))

    @classmethod
    def of_machine(
        cls, keys: GenerationKeys, remote_id: bytes, random: Random = os.urandom
    ) -> Self:
        """Returns that of a new machine, which is to read and push."""
        owner, seed = keys.owner_key, random(KEY_SIZE)
        return cls(remote_id, owner.generation, keys.algorithm, owner.public, seed, is_writer=False)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Returns an invitation out of its text; raises InvalidArgument."""
        data, is_writer = b"", False
        parts = _TITLE.match(text.strip())
        del text
        try:
            if parts is not None:
                is_writer = parts[1] == "writer"
                data = b32decode(_padded(parts[2].upper()))
        except ValueError:
            data = b""
        del parts
        fields = None
        if len(data) == _FIELDS.size + _CHECK_SIZE and _check(data) == data[_FIELDS.size :]:
            fields = _FIELDS.unpack_from(data)
        del data
        if fields is None:
            raise InvalidArgument("This is not an invitation, or it was changed")
        version, algorithm, generation, remote_id, key, seed = fields
        del fields
        if version != _VERSION or algorithm not in set(Algorithm):
            del seed
            raise InvalidArgument("This invitation is of a later version of treesnap")
        return cls(remote_id, generation, Algorithm(algorithm), key, seed, is_writer=is_writer)

    @property
    def machine_id(self) -> bytes:
        """What the machine is called."""
        return key_signer(self.seed).id

    @property
    def inbox(self) -> bytes:
        """The public key that a writer encrypts for."""
        return self._key

    @property
    def owner(self) -> OwnerKey:
        """The owner that invited a machine."""
        return OwnerKey(self.generation, self._key)

    def secret(self) -> Secret:
        """Returns what opens the key slot of a machine."""
        return Secret.machine_key(self.seed, self.remote_id, self.owner)

    def recipient(self) -> Recipient:
        """Returns what that slot is made for."""
        return recipient(self.seed, self.remote_id)

    def to_text(self) -> str:
        """Returns the text that is given to the writer: a secret."""
        data = _FIELDS.pack(
            _VERSION, self.algorithm, self.generation, self.remote_id, self._key, self.seed
        )
        title = "treesnap-writer-" if self.is_writer else "treesnap-machine-"
        return title + b32encode(data + _check(data)).decode("ascii").rstrip("=").lower()

    def writer(self) -> WriterKeys:
        """Returns what the writer signs and encrypts with."""
        return WriterKeys(self.seed, self.remote_id)

    def __repr__(self) -> str:
        return f"<Invitation to {self.remote_id.hex()}>"


def _check(data: bytes) -> bytes:
    return checksum(b"treesnap invitation 1" + data[: _FIELDS.size], _CHECK_SIZE)


def _padded(text: str) -> str:
    return text + "=" * (-len(text) % 8)
