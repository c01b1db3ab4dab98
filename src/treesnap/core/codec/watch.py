"""What a watcher says, and what the stat cache keeps of it.

A watcher gives marks. Asked for what changed since a mark, it answers with a new mark
and with paths, or with a new mark alone when it cannot know: the mark is of another
watcher, or changes were lost since. The idea is that of Watchman's clock.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from treesnap.core.codec.message import LONG_ARRAY_LENGTH_MAX, Fields, pack, require, unpack
from treesnap.core.codec.snapshot import decode_rules, encode_rules
from treesnap.core.model.entities import IgnoreRules
from treesnap.core.model.errors import Corrupt, InvalidArgument
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.results import FollowFailure, FollowStatus, WatchStatus
from treesnap.core.model.treepath import parse

ANSWER_SIZE_MAX = 64 << 20
"""Bytes of the longest answer; a watcher with more to say answers that it cannot know."""
QUESTION_SIZE_MAX = 4096


class Mark(NamedTuple):
    """A moment in the life of one watcher, until which it had seen every change."""

    watcher: bytes
    """Random id of the watcher."""
    number: int


class Answer(NamedTuple):
    """What a watcher knows."""

    mark: Mark
    """Now: what changes later is reported to a process that asks with this mark."""
    paths: tuple[bytes, ...] | None
    """What may have changed, or None when anything may."""
    whole: tuple[bytes, ...] = ()
    """Directories below which everything may have changed."""
    mapped: tuple[int, ...] = ()
    """Inode numbers of files that were mapped for writing, or may have been, at the mark."""
    written: tuple[int, ...] = ()
    """Inode numbers of files that may have been written to although their times say nothing."""


class WatchNote(NamedTuple):
    """What the next walk needs to know, to look at nothing but what changed since this one."""

    mark: Mark
    """Given before the walk began."""
    walked_ns: int
    """When a walk last looked at everything, in ns since the epoch."""
    listed: tuple[bytes, ...]
    """Directories to look at each time, in order: of names with other hard links, of those that
    could not be read, and of mapped files, not everything is reported."""
    unfinished_links: bytes
    """Stands for the files of which not all names were found, see ``worktree.links``."""
    rules: tuple[IgnoreRules, ...]
    """The exclusions that were in force, in the order of the walk."""


def encode_note(note: WatchNote) -> dict[str, Any]:
    """Returns a note as a map."""
    return {
        "watcher": note.mark.watcher,
        "number": note.mark.number,
        "walked_at": note.walked_ns,
        "listed": note.listed,
        "unfinished_links": note.unfinished_links,
        "rules": encode_rules(note.rules),
    }


def decode_note(value: dict[str, Any]) -> WatchNote:
    """Returns a stored note, or raises Corrupt."""
    fields = Fields(value, "watch note")
    return WatchNote(
        Mark(fields.get("watcher", bytes), fields.size("number")),
        fields.time("walked_at"),
        _paths(fields.get("listed", tuple)),
        fields.get("unfinished_links", bytes),
        decode_rules(fields.get("rules", tuple), "watch note"),
    )


class Asked(StrEnum):
    """What a watcher in another process can be asked."""

    CHANGES = "changes"
    STATUS = "status"
    STOP = "stop"


class Question(NamedTuple):
    """What a process asks a watcher in another one."""

    asked: Asked
    since: Mark | None = None
    """For changes: since when, or None when only a new mark is wanted."""
    view: bytes = b""
    """For changes: a hash of everything that decides what the asking process sees of the root."""


def encode_question(question: Question) -> bytes:
    """Returns the bytes of a question."""
    since = question.since
    known = {"watcher": since.watcher, "number": since.number} if since is not None else {}
    return pack({"version": 1, "ask": question.asked.value, "view": question.view, **known})


def decode_question(data: bytes) -> Question:
    """Returns what is asked; raises Corrupt."""
    fields = Fields(unpack(data, "question"), "question")
    fields.require_version(1)
    asked = fields.get("ask", str)
    require(asked in Asked._value2member_map_, "question", "what it asks is unknown")
    watcher = fields.optional("watcher", bytes)
    mark = Mark(watcher, fields.size("number")) if watcher is not None else None
    return Question(Asked(asked), mark, fields.get("view", bytes))


def encode_answer(answer: Answer) -> bytes:
    """Returns the bytes of an answer."""
    fields = answer._asdict()
    mark: Mark = fields.pop("mark")
    return pack({"version": 1, **mark._asdict(), **fields})


def decode_answer(data: bytes) -> Answer:
    """Returns a watcher's answer; raises Corrupt."""
    fields = Fields(unpack(data, "answer", LONG_ARRAY_LENGTH_MAX), "answer")
    fields.require_version(1)
    paths = fields.optional("paths", tuple)
    mapped, written = fields.get("mapped", tuple), fields.get("written", tuple)
    is_right = all(type(inode) is int and inode >= 0 for inode in mapped + written)
    require(is_right, "answer", "what is mapped or written is not a list of inode numbers")
    return Answer(
        Mark(fields.get("watcher", bytes), fields.size("number")),
        _paths(paths) if paths is not None else None,
        _paths(fields.get("whole", tuple)),
        mapped,
        written,
    )


def encode_status(status: WatchStatus) -> bytes:
    """Returns the bytes of a status."""
    then = status.then
    fields = {**status._asdict(), "then": None}
    if then is not None:
        failure = then.failure._asdict() if then.failure is not None else None
        fields["then"] = {**then._asdict(), "failure": failure}
    return pack({"version": 1, **fields})


def decode_status(data: bytes) -> WatchStatus:
    """Returns what a watcher says of itself; raises Corrupt."""
    fields = Fields(unpack(data, "status"), "status")
    fields.require_version(1)
    every_ms = fields.optional("every_ms", int)
    return WatchStatus(
        process_id=fields.size("process_id"),
        started_at_ns=fields.time("started_at_ns"),
        directories=fields.size("directories"),
        every_ms=every_ms,
        on_change=fields.get("on_change", bool),
        snapshots=fields.size("snapshots"),
        last_snapshot=fields.optional("last_snapshot", str),
        last_error=fields.optional("last_error", str),
        why_lost=fields.optional("why_lost", str),
        then=_follow_status(fields.optional("then", dict)),
    )


def _follow_status(value: dict[str, Any] | None) -> FollowStatus | None:
    if value is None:
        return None
    fields = Fields(value, "status of a command")
    failure = fields.optional("failure", dict)
    return FollowStatus(
        fields.get("command", str),
        fields.get("running", bool),
        fields.time("succeeded_at_ns") if value.get("succeeded_at_ns") is not None else None,
        fields.size("failures"),
        _follow_failure(failure) if failure is not None else None,
    )


def _follow_failure(value: dict[str, Any]) -> FollowFailure:
    fields = Fields(value, "failure of a command")
    return FollowFailure(fields.optional("exit_code", int), fields.get("message", str))


def _paths(value: tuple[Any, ...]) -> tuple[bytes, ...]:
    require(all(type(path) is bytes for path in value), "list of paths", "one is not bytes")
    try:
        return tuple(map(parse, value))
    except InvalidArgument as error:
        raise Corrupt(f"A path is not valid: {error}") from error
