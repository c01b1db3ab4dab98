"""What watchers are asked, and what they answer, as bytes."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sampling import sized
from treesnap.core.codec.message import pack, unpack
from treesnap.core.codec.watch import (
    Answer,
    Asked,
    Mark,
    Question,
    WatchNote,
    decode_answer,
    decode_note,
    decode_question,
    decode_status,
    encode_answer,
    encode_note,
    encode_question,
    encode_status,
)
from treesnap.core.model.errors import Corrupt
from treesnap.core.model.results import FollowFailure, FollowStatus, WatchStatus
from treesnap.core.model.snapshots import IgnoreRules

COUNTS = st.integers(0, 2**63 - 1)
MARKS = st.builds(Mark, st.binary(min_size=16, max_size=16), COUNTS)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
DIRECTORIES = st.lists(st.sampled_from([b"a", b"\xff", b"b c"]), max_size=3).map(b"/".join)
PATHS = st.lists(DIRECTORIES, max_size=5).map(tuple)
PATTERNS = st.lists(st.binary(max_size=8).map(lambda raw: raw.decode("utf-8", "surrogateescape")))
RULES = st.builds(IgnoreRules, DIRECTORIES, PATTERNS.map(tuple))
NOTES = st.builds(
    WatchNote, MARKS, COUNTS, PATHS, st.binary(max_size=16), st.lists(RULES, max_size=3).map(tuple)
)
INODES = st.lists(st.integers(0, 2**64 - 1), max_size=3).map(tuple)
ANSWERS = st.builds(Answer, MARKS, st.none() | PATHS, PATHS, INODES, INODES)
FAILURES = st.builds(FollowFailure, st.none() | st.integers(-64, 255), TEXTS)
FOLLOWING = st.builds(
    FollowStatus, TEXTS, st.booleans(), st.none() | COUNTS, COUNTS, st.none() | FAILURES
)
STATUSES = st.builds(
    WatchStatus,
    process_id=COUNTS,
    started_at_ns=COUNTS,
    directories=COUNTS,
    every_ms=st.none() | COUNTS,
    on_change=st.booleans(),
    snapshots=COUNTS,
    last_snapshot=st.none() | TEXTS,
    last_error=st.none() | TEXTS,
    why_lost=st.none() | TEXTS,
    then=st.none() | FOLLOWING,
)
STATUS = WatchStatus(
    process_id=1,
    started_at_ns=2,
    directories=3,
    every_ms=None,
    on_change=True,
    snapshots=4,
    last_snapshot=None,
    last_error=None,
    why_lost=None,
)
MARK = Mark(bytes(16), 7)


@given(NOTES)
def test_a_note_comes_back(note):
    assert decode_note(unpack(pack(encode_note(note)), "note")) == note


@given(st.builds(Question, st.sampled_from(Asked), st.none() | MARKS, st.binary(max_size=20)))
def test_a_question_comes_back(question):
    assert decode_question(encode_question(question)) == question


@given(ANSWERS)
def test_an_answer_comes_back(answer):
    assert decode_answer(encode_answer(answer)) == answer


@given(STATUSES)
def test_a_status_comes_back(status):
    assert decode_status(encode_status(status)) == status


def test_a_watcher_of_an_older_version_runs_no_command_that_is_known():
    fields = unpack(encode_status(STATUS), "status")
    del fields["then"]

    assert decode_status(pack(fields)) == STATUS


def test_an_answer_may_have_more_paths_than_other_arrays_have_items():
    answer = Answer(MARK, tuple(b"%d" % number for number in range(50_000)), ())

    assert decode_answer(encode_answer(answer)) == answer


MARKED = {"watcher": bytes(16), "number": 7}
FOLLOWED = {"command": "true", "running": False, "failures": 0}
VALID = {
    decode_question: encode_question(Question(Asked.CHANGES, MARK)),
    decode_answer: encode_answer(Answer(MARK, (b"a",), (b"b",))),
    decode_status: encode_status(STATUS._replace(last_error="why")),
}


@pytest.mark.parametrize("decode", VALID, ids=lambda decode: decode.__name__)
@settings(max_examples=sized(40, 200), derandomize=True)
@given(data=st.data())
def test_any_bytes_are_understood_or_refused(decode, data):
    valid = VALID[decode]
    place = data.draw(st.integers(0, len(valid) - 1))
    changed = data.draw(
        st.sampled_from(
            [
                valid[:place],
                valid + b"\0",
                valid[:place] + bytes([valid[place] ^ 0x81]) + valid[place + 1 :],
                data.draw(st.binary(max_size=40)),
            ]
        )
    )
    with suppress(Corrupt):
        decode(changed)


@pytest.mark.parametrize(
    ("decode", "change"),
    [
        (decode_question, {"version": 2}),
        (decode_question, {"asked": "nonsense"}),
        (decode_question, {"asked": None}),
        (decode_question, {"since": {**MARKED, "number": -1}}),
        (decode_question, {"since": {**MARKED, "number": "7"}}),
        (decode_question, {"since": {**MARKED, "watcher": "text"}}),
        (decode_question, {"since": b"mark"}),
        (decode_question, {"view": None}),
        (decode_answer, {"version": 2}),
        (decode_answer, {"mark": None}),
        (decode_answer, {"mark": {**MARKED, "number": None}}),
        (decode_answer, {"mark": {**MARKED, "watcher": None}}),
        (decode_answer, {"paths": ("text",)}),
        (decode_answer, {"paths": b"bytes"}),
        (decode_answer, {"paths": (b"../a",)}),
        (decode_answer, {"whole": None}),
        (decode_answer, {"whole": (b"a//b",)}),
        (decode_answer, {"whole": (1,)}),
        (decode_answer, {"mapped": (-1,)}),
        (decode_answer, {"written": (b"1",)}),
        (decode_status, {"version": 2}),
        (decode_status, {"process_id": -1}),
        (decode_status, {"on_change": 1}),
        (decode_status, {"every_ms": "soon"}),
        (decode_status, {"last_error": b"bytes"}),
        (decode_status, {"then": "true"}),
        (decode_status, {"then": {**FOLLOWED, "command": None}}),
        (decode_status, {"then": {**FOLLOWED, "running": 1}}),
        (decode_status, {"then": {**FOLLOWED, "succeeded_at_ns": "now"}}),
        (decode_status, {"then": {**FOLLOWED, "failures": -1}}),
        (decode_status, {"then": {**FOLLOWED, "failure": {"exit_code": 1}}}),
    ],
)
def test_what_breaks_a_rule_is_refused(decode, change):
    fields = unpack(VALID[decode], "message")

    with pytest.raises(Corrupt):
        decode(pack({**fields, **change}))


@pytest.mark.parametrize(
    "change",
    [
        {"watcher": None},
        {"number": -1},
        {"walked_at": "long ago"},
        {"listed": ("text",)},
        {"listed": (b"..",)},
        {"unfinished_links": None},
        {"rules": None},
        {"rules": ((b"a",),)},
        {"rules": (("a", ()),)},
        {"rules": ((b"../a", ()),)},
        {"rules": ((b"a", ("text",)),)},
    ],
)
def test_a_note_that_breaks_a_rule_is_refused(change):
    note = WatchNote(MARK, 1, (b"a",), b"", (IgnoreRules(b"a", ("*.o",)),))

    with pytest.raises(Corrupt):
        decode_note({**unpack(pack(encode_note(note)), "note"), **change})
