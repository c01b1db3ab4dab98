"""Arguments of a wrong type are one clear error, in every public function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import NamedTuple

import pytest

import treesnap
from oracle import difference, record
from treesnap import CreateOptions, InvalidArgument
from treesnap.core.handle import Handle
from treesnap.core.model.arguments import checked
from treesnap.core.model.results import FileHunks
from treesnap.core.store.maintenance.retention import Policy

VALID = {
    "ref": "latest",
    "path": "file",
    "pattern": "*",
    "command": ["true"],
    "a": "latest",
    "b": "latest",
    "changes": (),
    "to": "archive.tar",
    "source": "archive.tar",
    "found": FileHunks(None, b"file", "", ()),
    "numbers": [0],
}
"""What a method is called with where it needs something."""

NOT_OF = {
    "str": [None, 1, b"text", object(), ["text"], "\ud800"],
    "int": ["1", 1.5, True, -1, 1 << 63, b"1", [1]],
    "float": ["1", float("nan"), True, -1.0, None, [1]],
    "bool": [None, 0, 1, "no", []],
    "PathLike": [1, object(), "a\0b", b"a\0b", "\ud800", ["a"]],
    "datetime": [1, 1.5, "2026-11-20", object()],
    "Sequence[PathLike]": [None, 1, "file", b"file", {"file": 1}, [1], [None], object()],
    "Sequence[SnapshotName]": [None, 1, "latest", b"latest", ["latest"], [1], object()],
    "Sequence[str]": [None, 1, "true", b"true", {"true": 1}, [1], [None], object()],
    "Sequence[int]": [None, 1, "0", b"0", {"0": 1}, ["0"], [-1], [True], object()],
    "Sequence[Change]": [None, 1, "M", {"M": 1}, [1], [("path", "added", None, None)]],
    "Iterable[str]": [None, 1, "*.log", b"*.log", {"*.log": 1}, [1], [None], object()],
    "Mapping[str, str]": [1, "a=b", [("a", "b")], {"a": None}, {"a": 1}, {1: "a"}, {"a": True}],
    "tuple[int, int]": [1, "1/2", (1,), (1, "2"), (1, True), (1, 2, 3)],
    "FileHunks": [None, "file", 1, (), {"hunks": ()}],
    "CreateOptions": ["force", 1, {"force": True}],
    "Policy": ["keep", 1, {"keep_last": 1}],
    "CheckpointType": [1, object()],
    "SnapshotKind": [None, "manual", 1, "other"],
    "Monitor": [1, "monitor", object(), print],
    "Readable": [None, 1, object(), print],
}
"""What a parameter with an annotation does not take; None too where it is not among it."""


class Wrong(NamedTuple):
    """A call with one argument that is not of the annotation's type."""

    method: str
    parameter: str
    value: object

    def arguments(self, function: Callable[..., object]) -> tuple[list[object], dict[str, object]]:
        """Returns positional and named arguments."""
        parameters = inspect.signature(function).parameters
        varying = [item.name for item in parameters.values() if item.kind is item.VAR_POSITIONAL]
        if self.parameter in varying:
            return [self.value], {}
        needed = {
            item.name: VALID[item.name]
            for item in parameters.values()
            if item.default is item.empty
            and item.kind is not item.VAR_POSITIONAL
            and item.name in VALID
        }
        return [], {**needed, self.parameter: self.value}


def public_methods() -> list[str]:
    return [
        name
        for name, value in inspect.getmembers(Handle, inspect.isfunction)
        if not name.startswith("_")
    ]


def wrong_calls(name: str, function: Callable[..., object]) -> list[Wrong]:
    """Returns the calls for each parameter of a function and each value that it does not take."""
    found = []
    for item in inspect.signature(function).parameters.values():
        if item.name == "self":
            continue
        kinds = [kind.strip() for kind in item.annotation.split("|")]
        values = [value for kind in kinds if kind != "None" for value in NOT_OF[kind]]
        found += [
            Wrong(name, item.name, value)
            for value in values
            if not ("None" in kinds and value is None)
        ]
    return found


def name_of(call: Wrong) -> str:
    """Returns a test's name, which is the same in every process."""
    value = type(call.value).__name__ if type(call.value) is object else repr(call.value)
    return f"{call.parameter}={value}"


CALLS = [call for name in public_methods() for call in wrong_calls(name, getattr(Handle, name))]


@pytest.fixture
def handle(tmp_path):
    """A root with a file and two snapshots."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_text("one")
    handle = treesnap.open(root, tmp_path / "store")
    handle.create()
    (root / "file").write_text("two")
    handle.create()
    return handle


@pytest.mark.parametrize("name", public_methods())
def test_every_argument_of_a_handle_is_checked(handle, name):
    before = record(handle.root)
    snapshots = handle.list()
    calls = [call for call in CALLS if call.method == name]
    for call in calls:
        method = getattr(handle, name)
        positional, named = call.arguments(getattr(Handle, name))

        with pytest.raises(InvalidArgument, match=f"^{call.parameter} must be ") as found:
            method(*positional, **named)

        assert found.value.code == "invalid-argument"
    assert difference(before, record(handle.root)) == []
    assert handle.list() == snapshots


@pytest.mark.parametrize(
    "call",
    [
        lambda handle, made: handle.restore(made),
        lambda handle, made: handle.read(made.snapshot, "file"),
        lambda handle, made: handle.diff("latest", made),
        lambda handle, made: handle.delete("latest", made),
    ],
)
def test_who_passes_what_has_an_id_is_told_to_pass_that(handle, call):
    with pytest.raises(InvalidArgument, match="must be text") as caught:
        call(handle, handle.create())

    assert caught.value.hint == "pass its .id"


def test_only_of_references_it_says_so(handle):
    with pytest.raises(InvalidArgument) as caught:
        handle.create(label=handle.create())

    assert caught.value.hint is None


@pytest.mark.parametrize("call", wrong_calls("open", treesnap.open), ids=name_of)
def test_every_argument_of_open_is_checked(tmp_path, call):
    arguments = {"root": tmp_path, call.parameter: call.value}

    with pytest.raises(InvalidArgument, match=f"^{call.parameter} must be "):
        treesnap.open(**arguments)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda handle: handle.restore(None), "ref must be text, not None"),
        (
            lambda handle: handle.restore(handle.list()[0]),
            "ref must be text, not a Snapshot",
        ),
        (
            lambda handle: handle.create("file"),
            "paths must be a list, each a path, or None, not the text 'file'",
        ),
        (
            lambda handle: handle.create([None]),
            "paths must be a list, each a path, or None, not one that holds None",
        ),
        (lambda handle: handle.create(label=b"x"), "label must be text or None, not bytes"),
        (
            lambda handle: handle.create(tags={"a": None}),
            "tags must be a mapping of text to text or None, not one that holds None",
        ),
        (
            lambda handle: handle.create(step=1.5),
            "step must be a whole number from 0 to 9223372036854775807 or None, not the number 1.5",
        ),
        (
            lambda handle: handle.restore("latest", dry_run="no"),
            "dry_run must be True or False, not the text 'no'",
        ),
        (
            lambda handle: handle.prune({"keep_last": 1}),
            "policy must be a Policy or None, not a dict",
        ),
    ],
)
def test_an_error_names_the_parameter_and_what_it_was_given(handle, call, message):
    with pytest.raises(InvalidArgument) as found:
        call(handle)

    assert found.value.message == message


def test_what_is_listed_may_come_from_an_iterator(handle):
    made = handle.create(
        (path for path in ["file"]), options=CreateOptions(exclude=iter(["*.log"])), tags={"a": "b"}
    ).snapshot

    assert made.record.scope == (b"file",)
    assert made.record.tags == {"a": "b"}


def test_the_innermost_of_decorated_functions_says_what_is_taken(handle):
    with pytest.raises(InvalidArgument, match=r"^label must be text or None, not the number 1$"):
        handle.rollback_on_error(1)  # before the block is entered


def test_an_annotation_that_is_not_understood_lets_nothing_through():
    @checked
    def function(text: str, value: dict[str, int]) -> None: ...

    for _ in range(2):
        with pytest.raises(TypeError, match=r"No check for the annotation 'dict\[str, int\]'"):
            function("text", {})


def test_a_function_that_is_checked_keeps_its_signature():
    assert list(inspect.signature(treesnap.open).parameters) == [
        "root",
        "store",
        "monitor",
        "wait_s",
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("keep_last", "3"),
        ("keep_last", 1.5),
        ("keep_daily", True),
        ("keep_monthly", "3"),
        ("keep_within_s", b"1"),
        ("keep_tags", "release"),
        ("keep_tags", (1,)),
        ("keep_tags", None),
        ("kinds", ("manual",)),
        ("kinds", None),
    ],
)
def test_the_rules_of_a_policy_are_checked(handle, name, value):
    with pytest.raises(InvalidArgument, match=f"^{name} must be "):
        handle.prune(Policy(**{name: value}))

    assert len(handle.list()) == 2
