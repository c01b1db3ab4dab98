"""Errors: exit codes, messages, advice, and their form as JSON."""

import fcntl
import json
from contextlib import ExitStack

import click
import pytest

from treesnap.cli import failure
from treesnap.core.model import errors
from treesnap.core.model.errors import ErrorCode, WarningCode
from treesnap.core.model.hints import HINTS, WARNING_HINTS


def interrupted() -> RuntimeError:
    """What Python until 3.11 makes of Ctrl-C while it makes a class."""
    error = RuntimeError("Error calling __set_name__")
    error.__cause__ = KeyboardInterrupt()
    return error


def test_every_code_has_a_line_of_advice_or_none():
    assert set(HINTS) == set(ErrorCode)


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (errors.InvalidArgument("M"), 2),
        (errors.InvalidArgument("M", code=ErrorCode.AMBIGUOUS_REF), 2),
        (errors.NotFound("M"), 5),
        (errors.NotFound("M", code=ErrorCode.COMMAND_NOT_FOUND), 127),
        (errors.Refused("M"), 3),
        (errors.Conflict("M"), 3),
        (errors.UnsupportedFormat("M"), 3),
        (errors.Busy("M"), 6),
        (errors.Corrupt("M"), 7),
        (errors.StorageFull("M"), 8),
        (errors.OperationFailed("M"), 1),
        (OSError(13, "Permission denied", "place"), 1),
        (KeyboardInterrupt(), 130),
        (interrupted(), 130),
        (click.Abort(), 130),
        (click.UsageError("M"), 2),
        (RuntimeError("M"), 1),
    ],
)
def test_exit_code_of(error, exit_code):
    assert exit_code == failure.from_error(error).exit_code


def test_text_is_a_message_and_advice(snap):
    snap("create")

    result = snap("show", "nosuch")

    first, second = result.err.splitlines()
    assert (result.code, result.out) == (5, "")
    assert first.startswith("snap: ")
    assert "nosuch" in first
    assert second == "hint: 'snap list' shows the snapshots of this root"


def test_advice_names_the_program_as_it_was_called():
    described = failure.from_error(errors.NotFound("Nothing"), "treesnap")

    assert described.hint == "'treesnap list' shows the snapshots of this root"


def test_json_is_one_object_on_standard_output_and_nothing_on_standard_error(snap):
    snap("create")

    result = snap("show", "nosuch", "--json")

    assert result.err == ""
    assert set(result.json) == {"schema", "code", "message", "hint", "path", "exit_code"}
    assert result.json["schema"] == "treesnap.error/1"
    assert result.json["code"] == "snapshot-not-found"
    assert result.json["exit_code"] == result.code == 5


@pytest.mark.parametrize(
    "words",
    [
        ["--json", "nosuch"],
        ["--nosuch", "--json", "list"],
        ["list", "--nosuch", "--json"],
        ["--json", "show"],
        ["create", "--step", "x", "--json"],
        ["diff", "--stat", "--name-status", "--json"],
    ],
)
def test_usage_error_is_an_object_with_json(snap, words):
    result = snap(*words)

    assert (result.code, result.err) == (2, "")
    assert (result.json["schema"], result.json["code"]) == ("treesnap.error/1", "usage")


def test_usage_error_says_where_help_is(snap):
    result = snap("create", "--nosuch")

    assert result.code == 2
    assert result.err.endswith("hint: see 'snap create --help'\n")


def test_path_of_an_error_that_is_not_utf8_is_given_as_bytes_too():
    from treesnap.cli.failure import failure_fields

    described = failure.from_error(errors.NotFound("Gone", path=b"a\xff"))

    fields = failure_fields(described)
    assert (fields["path"], fields["path_bytes"]) == ("a\\xff", "Yf8=")


def test_an_error_of_the_library_says_what_the_command_line_prints():
    told = [
        errors.NotFound("Gone", path=b"a\xff"),
        errors.MergeConflict("Both", (b"a", b"b")),
        errors.RanTogether("Together", "s1", (3, 4), ("s2",)),
        errors.NotOnRemote("Not there"),
        errors.KeysRotated("Old"),
        errors.OperationFailed("M"),
    ]

    for error in told:
        printed = failure.failure_fields(failure.from_error(error))
        del printed["exit_code"]
        assert json.loads(json.dumps(error.to_dict())) == printed
        assert error.hint == printed["hint"]
    assert told[0].hint == "'snap list' shows the snapshots of this root"
    assert told[-1].hint is None


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        (errors.HeldByMount, "'snap umount DIR' ends a mount"),
        (errors.MountStopped, "'kill -CONT PID' lets its process go on"),
        (errors.Busy, "--wait SECONDS waits longer"),
    ],
)
def test_no_advice_is_to_wait_for_a_mount(kind, way):
    described = failure.from_error(kind("A mount needs it"))

    assert (described.code, described.exit_code) == ("busy", 6)
    assert way in described.hint


def test_system_error_shows_the_path_once():
    named = failure.from_error(OSError(2, "No such file", "a\x1bb"))
    message = failure.from_error(errors.OperationFailed("Cannot read 'a'", path=b"a"))

    assert failure.text_lines(named, "snap") == ["snap: No such file: a\\x1bb"]
    assert failure.text_lines(message, "snap") == ["snap: Cannot read 'a'"]


def test_bug_is_told_without_a_traceback(unsaid_snap, monkeypatch):
    from treesnap.core.handle import Handle

    def list_wrongly(*_arguments, **_options):
        raise RuntimeError("impossible")

    monkeypatch.setattr(Handle, "list", list_wrongly)

    result = unsaid_snap("list")
    debugged = unsaid_snap("list", env={"SNAP_STORE": "", "SNAP_DEBUG": "1"})

    assert result.code == 1
    assert result.err.startswith("snap: Internal error: RuntimeError: impossible\n")
    assert "SNAP_DEBUG=1" in result.err
    assert "Traceback" not in result.err
    assert "Traceback" in debugged.err


@pytest.mark.parametrize("is_library", [False, True])
def test_a_clock_that_is_far_off_is_no_bug_of_ours(
    unsaid_snap, monkeypatch, default_store, is_library
):
    """As the real clock is past 2262, for Python."""
    from treesnap.core.handle import Handle

    def time_ns(*_arguments, **_options):
        raise OverflowError("timestamp too large to convert to C PyTime_t")

    monkeypatch.setattr("time.time_ns", time_ns)
    if is_library:
        monkeypatch.setattr(Handle, "create", time_ns)

    result = unsaid_snap("create")

    assert result.code == 1
    assert "snap: The clock of this machine is past the year 2262" in result.err
    assert not list(default_store.glob("snapshots/*/*"))


def test_names_in_messages_cannot_act_on_the_terminal(snap):
    snap("create")

    result = snap("show", "\x1b[31mred")

    assert "\x1b" not in result.err


def test_damaged_store_exits_7(snap, root, store):
    (root / "a").write_bytes(bytes(range(256)) * 1000)
    snap("create")
    for pack in sorted(store.rglob("*")):
        if pack.is_file() and pack.stat().st_size > 200 and "pack" in str(pack):
            pack.chmod(0o600)
            content = bytearray(pack.read_bytes())
            content[100:140] = bytes(40)
            pack.write_bytes(content)

    result = snap("cat", "latest", "a")

    assert (result.code, result.raw) == (7, b"")


def test_root_that_is_in_use_exits_6(snap, root, store):
    (root / "a").write_text("a")
    snap("create")
    (root / "a").write_text("b")
    with ExitStack() as stack:
        paths = [path for path in store.rglob("*") if "lock" in path.name]
        locks = [stack.enter_context(path.open("rb+")) for path in paths]
        for lock in locks:
            fcntl.flock(lock, fcntl.LOCK_EX)

        result = snap("--wait", "0.1", "create", "--json")

    assert (result.code, result.json["code"]) == (6, "busy")


def test_too_little_memory_is_not_called_a_bug():
    told = failure.text_lines(failure.from_error(MemoryError()), "snap")

    assert told[0] == "snap: There is not enough memory"
    assert "bug" not in told[1]


def test_a_warning_is_followed_by_its_hint(snap, store):
    snap("create")
    (store / "config.toml").write_text("nosuch = 1\n")

    shown = snap("create").err.splitlines()

    at = next(number for number, line in enumerate(shown) if "cannot be used" in line)
    assert shown[at + 1] == f"hint: {WARNING_HINTS[WarningCode.SETTINGS_IGNORED]}"


def test_a_warning_has_a_code_and_a_hint_in_json(snap, store):
    snap("create")
    (store / "config.toml").write_text("nosuch = 1\n")

    (warning,) = snap("create", "--json").json["warnings"]

    assert "cannot be used" in warning.pop("message")
    assert warning == {
        "code": "settings-ignored",
        "hint": WARNING_HINTS[WarningCode.SETTINGS_IGNORED],
    }
