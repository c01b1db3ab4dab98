"""What an agent's host says and is told, in the same words for all hosts; pure.

A host is a program in which an agent works, such as an editor. It tells a hook what is about to
happen, waits for the reply, and does as the reply says. ``hosts`` has what each of them writes
and reads; all else knows only the records of this module.
"""

from __future__ import annotations

from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.ops.history.steps import EventPhase


class Event(NamedTuple):
    """One thing that happens in a session."""

    host: str
    """The name of the host, such as ``claude``."""
    phase: EventPhase
    root: str
    """Absolute path of the directory in which the agent works."""
    session: str
    """The host's id of the session; a valid name of a session."""
    key: str = ""
    """The same for each repetition of one call or prompt. Empty where the host tells nothing to
    make it of: such an event repeats no other."""
    tool: str | None = None
    """The host's name of the tool, before and after it runs."""
    prompt: str | None = None
    """What the user wrote."""
    summary: str | None = None
    """What the tool does, such as ``rm -rf build``; of any length."""
    is_read_only: bool = False
    """Whether the tool is known to change nothing, so that nothing is captured."""
    call: str = ""
    """What names a call, the same before and after it. Empty after calls that end together."""
    paths: tuple[bytes, ...] | None = None
    """Full paths of the files that alone the tool changes, if it says so; else None."""
    is_background: bool = False
    """Whether what the tool started goes on after it."""
    settled: tuple[str, ...] = ()
    """Calls that went on in the background and have ended; an empty name is all of them."""
    ends_agent: bool = False
    """Whether an agent has ended that another one of the session had started."""
    agent: str = ""
    """Which agent within the session, where one has started others."""
    ref: str = ""
    """The host's own id of a prompt, as it is; empty where it has none."""
    directory: str | None = None
    """Full path of where the agent is by now, in the root or elsewhere; None where the host does
    not say."""


class WorktreeAsked(NamedTuple):
    """A working tree that a host wants to have made or removed."""

    root: str
    """The directory in which the agent works."""
    makes: bool
    name: object = None
    """What the host calls one to be made; whatever it wrote."""
    path: str | None = None
    """Where one is that is to be removed."""


class Reply(NamedTuple):
    """How a hook ends, in the host's own form."""

    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0
