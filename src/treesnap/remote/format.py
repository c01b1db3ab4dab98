"""The file ``format`` of a remote: what it is, for a reader without a key.

    {"treesnap": "remote", "format": 2, "min_reader": 2, "min_writer": 2,
     "id": "<32 hex>", "encrypted": true, "collection": "any", "check": "<16 hex>"}

It is written once, and only where there is none, so it decides which of two machines that found
a remote at the same time has done it. It is not authentic: a server can change it. So a
machine remembers id and encryption of each remote, and refuses one that says something else.

It is a hint: each signed file says the same in its header, so it is written again where it is lost
or damaged. The ``check`` is a hash of the rest, for damage by chance.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from treesnap.core.model.errors import Corrupt, ErrorCode, UnsupportedFormat
from treesnap.core.model.ids import checksum
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.remote.records import Collection

NAME = "format"
VERSION = 2
SIZE_MAX = 1 << 16
_CHECK_SIZE = 8
_ID = re.compile(r"[0-9a-f]{32}\Z")


class RemoteFormat(NamedTuple):
    """What a remote says of itself."""

    remote_id: bytes
    """16 random bytes."""
    is_encrypted: bool
    collection: Collection = Collection.ANY


def encode_format(format_: RemoteFormat) -> bytes:
    """Returns the content of the file."""
    fields = {
        "treesnap": "remote",
        "format": VERSION,
        "min_reader": VERSION,
        "min_writer": VERSION,
        "id": format_.remote_id.hex(),
        "encrypted": format_.is_encrypted,
        "collection": format_.collection.value,
    }
    return (json.dumps({**fields, "check": _check(fields)}, indent=2) + "\n").encode()


def _check(fields: Mapping[str, Any]) -> str:
    """Returns what tells a whole file from one of which a bit was flipped."""
    content = json.dumps({key: value for key, value in fields.items() if key != "check"})
    return checksum(content.encode(), _CHECK_SIZE).hex()


def decode_format(data: bytes, where: str) -> RemoteFormat:
    """Returns what a file says; ``where`` is the remote.

    A later version may add fields. Raises Corrupt, and UnsupportedFormat for a version that this
    treesnap does not write.
    """
    try:
        fields = json.loads(data)
        if fields["treesnap"] != "remote":
            raise ValueError("it is another program's")
        numbers = [fields[name] for name in ("format", "min_reader", "min_writer")]
        if not all(type(number) is int for number in numbers):
            raise TypeError("its versions are not numbers")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(where, error) from error
    if max(numbers) > VERSION:
        raise UnsupportedFormat(
            f"The remote {where} has format {numbers[0]}, and this treesnap writes format {VERSION}"
        )
    try:
        if _ID.match(fields["id"]) is None or type(fields["encrypted"]) is not bool:
            raise ValueError("its fields are not what they should be")
        if not int(fields["id"], 16):  # stands for a remote that was not seen yet
            raise ValueError("it has no id")
        collection = Collection(fields["collection"])
        if fields["check"] != _check(fields):
            raise ValueError("it was changed")
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(where, error) from error
    return RemoteFormat(bytes.fromhex(fields["id"]), fields["encrypted"], collection)


def _damaged(where: str, error: Exception) -> Corrupt:
    return Corrupt(
        f"The file 'format' of the remote {where} cannot be read: {error}",
        code=ErrorCode.REMOTE_DAMAGED,
    )
