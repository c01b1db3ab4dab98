"""What a watcher says, and what the stat cache keeps of it.

A watcher gives marks. Asked for what changed since a mark, it answers with a new mark
and with paths, or with a new mark alone when it cannot know: the mark is of another
watcher, or changes were lost since. The idea is that of Watchman's clock.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from treesnap.core.codec.fields import (
    PATH,
    SIZE,
    TIME,
    FieldKind,
    Table,
    array,
    optional,
    plain,
    word,
)
from treesnap.core.codec.snapshot import decode_rules, encode_rules
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.results import FollowFailure, FollowStatus, WatchStatus
from treesnap.core.model.snapshots import IgnoreRules
from treesnap.core.model.type_names import Any

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
    """Stands for the files of which not all names were found, see ``scan.hard_links``."""
    rules: tuple[IgnoreRules, ...]
    """The exclusions that were in force, in the order of the walk."""


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


def encode_note(note: WatchNote) -> dict[str, Any]:
    """Returns a note as a map."""
    return {**_MARK.map_of(note.mark), **_NOTE.map_of(note)}


def decode_note(stored: Any) -> WatchNote:
    """Returns a stored note, or raises Corrupt."""
    return _NOTE.record_of(stored, mark=_MARK.record_of(stored))


def _read_rules(stored: Any, what: str, name: str) -> tuple[IgnoreRules, ...]:
    return decode_rules(plain(tuple).read(stored, what, name), what)


_MARK = Table(Mark, "mark", version=None, number=SIZE)
_NOTE = Table(
    WatchNote,
    "watch note",
    version=None,
    names={"walked_ns": "walked_at"},
    given=["mark"],
    walked_ns=TIME,
    listed=array(PATH),
    rules=FieldKind(_read_rules, encode_rules),
)
_QUESTION = Table(Question, "question", asked=word(Asked), since=optional(_MARK.kind))
_ANSWER = Table(
    Answer,
    "answer",
    mark=_MARK.kind,
    paths=optional(array(PATH)),
    whole=array(PATH),
    mapped=array(SIZE),
    written=array(SIZE),
)
_FAILURE = Table(FollowFailure, "failure of a command", version=None)
_FOLLOWING = Table(
    FollowStatus,
    "status of a command",
    version=None,
    succeeded_at_ns=optional(TIME),
    failures=SIZE,
    failure=optional(_FAILURE.kind),
)
_STATUS = Table(
    WatchStatus,
    "status",
    process_id=SIZE,
    started_at_ns=TIME,
    directories=SIZE,
    snapshots=SIZE,
    then=optional(_FOLLOWING.kind),
)
encode_question: Callable[[Question], bytes] = _QUESTION.encode
decode_question: Callable[[bytes], Question] = _QUESTION.decode
encode_answer: Callable[[Answer], bytes] = _ANSWER.encode
decode_answer: Callable[[bytes], Answer] = _ANSWER.decode
encode_status: Callable[[WatchStatus], bytes] = _STATUS.encode
decode_status: Callable[[bytes], WatchStatus] = _STATUS.decode
