"""Whether nothing but our own commands runs in this process, and for which it does.

Then nothing in it takes record locks, and a capture need not ask for them at each file: 4 % of
the processor time of a first capture of small files. A module of its own, because every command
imports it when it starts.
"""

from __future__ import annotations

is_own = False
client_id = 0
"""The process whose command this one carries out, in a child of a fork server; else 0."""


def claim() -> None:
    """Says that it is so, for this process and those that are forked from it."""
    global is_own  # noqa: PLW0603 - this is about the process
    is_own = True


def stand_for(process_id: int) -> None:
    """Says that this process does what another one was started for."""
    global client_id  # noqa: PLW0603 - this is about the process
    client_id = process_id
