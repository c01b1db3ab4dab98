"""What a store compares with what a server shows: the newest that it saw there before.

A server, or a thief of its credentials, can put old files back, all of which are authentic. So a
lower number is refused, and another content under one number: of a state, of the keys, of the list
of machines, and of the pushes of each machine. What a server hides from a machine that never saw
it, and that nothing knows of which the server shows, stays unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable

from treesnap.core.model.errors import ErrorCode, Refused, quoted
from treesnap.core.model.ids import checksum
from treesnap.remote.records import FILE_ID_SIZE, REMOTE_STATE, HeadName, Marks, RemoteState


def marks_of(number: int, state: RemoteState, generation: int, owner: bytes = b"") -> Marks:
    """Returns what is to be remembered of a state, and of the newest keys beside it."""
    return Marks(number, state_hash(state), generation, state.heads, owner=owner)


def state_hash(state: RemoteState) -> bytes:
    """Returns what tells a state from another one with its number.

    The token is left out: the first state of a remote may be written by two machines at once.
    """
    return checksum(REMOTE_STATE.seal(state._replace(token=bytes(FILE_ID_SIZE))), FILE_ID_SIZE)


def require_not_set_back(
    url: str, known: Marks, seen: Marks, hides: Callable[[HeadName], bool] = lambda _: False
) -> None:
    """Raises Refused where a server shows something older than what was seen there before.

    ``hides`` tells whether a push is shown no more, nor a later one of its machine.
    """
    if seen.generation < known.generation:
        raise set_back(
            url,
            f"is at key generation {seen.generation}, and was at generation {known.generation}",
        )
    is_same = seen.generation == known.generation and known.owner and seen.owner
    if is_same and seen.owner != known.owner:
        raise set_back(url, f"has another owner of key generation {seen.generation} than")
    if seen.members < known.members:
        raise set_back(
            url, f"has list {seen.members} of its machines, and had list {known.members}"
        )
    if seen.state_number < known.state_number:
        raise set_back(
            url, f"is at state {seen.state_number}, and was at state {known.state_number}"
        )
    is_other = seen.state_number == known.state_number and seen.state_hash != known.state_hash
    if is_other and any(known.state_hash):
        number = seen.state_number
        raise set_back(url, f"is at state {number}, and was at another state {known.state_number}")
    for head in known.heads:
        if hides(head):
            raise set_back(url, not_listed(head.machine, head.sequence))


def not_listed(machine: bytes, sequence: int, witness: bytes | None = None) -> str:
    """Returns what a remote does that does not show the push of a machine, in words.

    Another machine may be the one that says that it was there.
    """
    saw = "had it" if witness is None else f"machine {witness.hex()} saw it"
    return f"does not list push {sequence} of machine {machine.hex()}, and {saw}"


def set_back(url: str, what: str) -> Refused:
    """Returns the error for a remote that shows less than before, in words."""
    return Refused(
        f"The remote {quoted(url)} {what} before: it was set back, or its server hides something",
        code=ErrorCode.REMOTE_SET_BACK,
    )
