"""Errors: their classes, codes, and how they show paths."""

from __future__ import annotations

import pytest

import treesnap
from treesnap.core.model import errors
from treesnap.core.model.errors import (
    ErrorCode,
    NotFound,
    OperationFailed,
    TreesnapError,
    WarningCode,
    printable,
    quoted,
)
from treesnap.core.model.events import CollectingMonitor, NullMonitor, Phase

CLASSES = [
    item
    for item in vars(errors).values()
    if isinstance(item, type) and issubclass(item, TreesnapError)
]


@pytest.mark.parametrize("error_class", CLASSES, ids=lambda item: item.__name__)
def test_every_error_carries_message_code_and_path(error_class):
    error = error_class("It failed", path=b"some/path")

    assert str(error) == error.message == "It failed"
    assert (error.path, error.code) == (b"some/path", error_class.code)


def test_a_code_may_be_given():
    assert TreesnapError("It failed", code=ErrorCode.PINNED).code == "pinned"


def test_the_error_number_is_kept():
    assert OperationFailed("It failed", errno=5).errno == 5
    assert OperationFailed("It failed").errno is None


@pytest.mark.parametrize(
    ("error_class", "base"),
    [(errors.InvalidArgument, ValueError), (errors.NotFound, LookupError)],
)
def test_errors_are_what_callers_know(error_class, base):
    assert issubclass(error_class, base)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (b"plain/path", "plain/path"),
        ("größe", "größe"),
        (b"\xff", "\\xff"),
        (b"a\nb\tc\rd", "a\\nb\\tc\\rd"),
        (b"\x1b[31m", "\\x1b[31m"),
        ("\u202eabc", "\\xe2\\x80\\xaeabc"),
    ],
)
def test_paths_are_shown_on_one_line_and_safely(path, text):
    assert printable(path) == text


def test_monitors_may_ignore_everything_or_keep_remarks():
    silent, collecting = NullMonitor(), CollectingMonitor()
    for monitor in (silent, collecting):
        monitor.begin(Phase.SCAN, None, None)
        monitor.advance(1, 2)
        monitor.warn(WarningCode.ROOM_MADE, "Something happened")

    assert collecting.warnings == ["Something happened"]
    assert collecting.codes == [WarningCode.ROOM_MADE]


def test_no_warning_has_the_code_of_an_error():
    assert {code.value for code in WarningCode}.isdisjoint(code.value for code in ErrorCode)


def test_a_long_path_is_quoted_without_its_middle():
    path = b"/".join([b"a" * 255] * 16)

    assert quoted(b"a" * 255) == repr("a" * 255)
    assert len(quoted(path)) < 256
    assert quoted(b"begin" + path + b"end").startswith("'begin")
    assert quoted(b"begin" + path + b"end").endswith("end'")
    assert quoted(b"\xff" * 255).endswith("\\\\xff\\\\xff'")


def test_the_hint_for_a_missing_directory_fits_a_program_and_a_command(tmp_path):
    with pytest.raises(NotFound) as caught:
        treesnap.open(tmp_path / "absent", tmp_path / "store").create()

    assert caught.value.hint == "name a directory that exists, in a command with -C DIR"
