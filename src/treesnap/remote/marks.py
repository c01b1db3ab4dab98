"""What a store compares with what a server shows: the newest that it saw there before.

A server, or a thief of its credentials, can put old files back, all of which are authentic. So a
lower number is refused, and another content under one number. What a server hides from a machine
that never saw it stays unnoticed.
"""

from __future__ import annotations

from collections.abc import Collection

from treesnap.core.model.errors import ErrorCode, Refused, quoted
from treesnap.core.model.ids import checksum
from treesnap.core.model.quantities import count_text
from treesnap.remote.records import FILE_ID_SIZE, REMOTE_STATE, Marks, RemoteName, RemoteState


def marks_of(number: int, state: RemoteState, generation: int) -> Marks:
    """Returns what is to be remembered of a state, and of the newest keys beside it."""
    return Marks(number, state_hash(state), generation)


def state_hash(state: RemoteState) -> bytes:
    """Returns what tells a state from another one with its number.

    The token is left out: the first state of a remote may be written by two machines at once.
    """
    return checksum(REMOTE_STATE.seal(state._replace(token=bytes(FILE_ID_SIZE))), FILE_ID_SIZE)


def require_not_set_back(url: str, known: Marks, seen: Marks) -> None:
    """Raises Refused where a server shows something older than what was seen there before."""
    if seen.generation < known.generation:
        raise _set_back(url, f"key generation {seen.generation}", f"generation {known.generation}")
    if seen.state_number < known.state_number:
        raise _set_back(url, f"state {seen.state_number}", f"state {known.state_number}")
    is_other = seen.state_number == known.state_number and seen.state_hash != known.state_hash
    if is_other and known != Marks(generation=known.generation):
        number = seen.state_number
        raise _set_back(url, f"state {number}", f"another state {known.state_number}")


def require_not_hidden(url: str, hidden: Collection[RemoteName]) -> None:
    """Raises Refused where pushes are not shown that were seen, and that count still."""
    if hidden:
        raise Refused(
            f"The remote {quoted(url)} does not list {count_text(len(hidden), 'push', 'pushes')} "
            f"that it had before, such as {min(hidden)}: it was set back, or its server hides them",
            code=ErrorCode.REMOTE_SET_BACK,
        )


def _set_back(url: str, shown: str, before: str) -> Refused:
    return Refused(
        f"The remote {quoted(url)} is at {shown}, and was at {before} before: it was set back",
        code=ErrorCode.REMOTE_SET_BACK,
    )
