"""Command lines that are read without click are read as click reads them."""

import subprocess
import sys
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treesnap.cli import group
from treesnap.cli.command import SnapCommand
from treesnap.cli.commands import COMMANDS
from treesnap.cli.declarations import NotPlain, declared_in
from treesnap.cli.invocation import Invocation
from treesnap.cli.main import plain_call
from treesnap.cli.parameters import OneOf
from treesnap.core.model.errors import TreesnapError

pytestmark = pytest.mark.sampled(10)

VALUES = ["x", "", "0", "7", "1.5", "-1", "1_0", " 3", "٣", "nan", "inf", "1e400", "9" * 5000]
VALUES += ["a=b", "a=1", "=", "a=", "5M", "2h", "-", "--", "-x", "--json", "a b", "\udc80", "auto"]


def declared(name):
    """Returns the declaration of a command, or None where its module uses click."""
    module, _ = next(section[name] for section in COMMANDS.values() if name in section)
    return declared_in(__import__(module, fromlist=["_"]), name)


DECLARED = [name for section in COMMANDS.values() for name in section if declared(name)]


def kept_by(invocation):
    """Returns what an invocation knows of its global options."""
    output = invocation.output
    names = ("directory", "store", "wait_s", "session", "tags")
    kept = {name: getattr(invocation, name) for name in names}
    return {**kept, **{name: getattr(output, name) for name in ("as_json", "quiet", "colour")}}


def read_by_click(words, monkeypatch):
    """Returns what click reads: the command, its values and the invocation; None with an error."""
    read = []
    invocation = Invocation("snap")
    with monkeypatch.context() as patch:
        patch.setattr(
            SnapCommand,
            "invoke",
            lambda command, context: read.append((command.name, dict(context.params))),
        )
        try:
            group.run(words, invocation)
        except (group.click.ClickException, TreesnapError):
            return None
    return (*read[0], kept_by(invocation)) if read else None


def read_plainly(words):
    """Returns what is read without click; None where click has to read it."""
    invocation = Invocation("snap")
    try:
        call = plain_call(words, invocation)
    except NotPlain:
        return None
    return call.declared.name, call.values, kept_by(invocation)


def assert_alike(words, monkeypatch):
    """Compares both ways, where there are two; returns whether there are."""
    plainly = read_plainly(words)
    if plainly is None:
        return False
    read = read_by_click(words, monkeypatch)
    assert read is not None, words
    if read[0] == "diff":
        assert read[1].pop("paths") is None  # what stands behind '--'
    assert read == plainly, words
    return True


def words_of(name):
    """Returns words for a command line: its options, alone and with values, and values alone."""
    words = list(VALUES)
    for parameter in declared(name).parameters:
        kind = parameter.kind
        for option in parameter.options:
            words += [option, *(f"{option}={value}" for value in VALUES)]
        words += kind.words if isinstance(kind, OneOf) else ()
    return words


def plain_value(parameter):
    """Returns a value that an option takes."""
    kind = parameter.kind
    if isinstance(kind, OneOf):
        return kind.words[-1]
    return {"pair": "a=1", "size": "5M"}.get(kind.name, "3") if kind is not None else "text"


@pytest.mark.parametrize("name", DECLARED)
def test_every_option_is_read_without_click(name, monkeypatch):
    parameters = list(declared(name).parameters)
    arguments = [item.attributes for item in parameters if not item.options]
    needed = [
        attributes
        for attributes in arguments
        if attributes.get("required", "nargs" not in attributes)
    ]
    line = [name, *("x" for _ in needed)]

    for parameter in parameters:
        value = [] if parameter.attributes.get("is_flag") else [plain_value(parameter)]
        for option in parameter.options:
            assert assert_alike([*line, option, *value], monkeypatch), option


def test_the_everyday_commands_are_declared_without_click():
    assert {"create", "list", "status", "diff", "restore", "undo", "redo"} <= set(DECLARED)


@pytest.mark.parametrize("name", DECLARED)
def test_single_words_are_read_as_click_reads_them(name, monkeypatch):
    for word, before in product(words_of(name), [[], ["x", "y"]]):
        assert_alike([name, *before, word], monkeypatch)
        assert_alike([name, word, *before], monkeypatch)
        assert_alike([word, name, *before], monkeypatch)


@settings(deadline=None)
@given(data=st.data())
def test_lines_of_words_are_read_as_click_reads_them(data):
    name = data.draw(st.sampled_from(DECLARED))
    words = st.lists(st.sampled_from(words_of(name)) | st.text(max_size=3), max_size=6)
    before = data.draw(words)
    line = [*before, name, *data.draw(words)]
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert_alike(line, monkeypatch)


def test_a_usage_error_of_a_function_names_its_command(snap):
    result = snap("diff", "--stat", "--name-status", "-C", ".")

    assert result.code == 2
    assert result.err.splitlines() == [
        "snap: --stat and --name-status exclude each other",
        "hint: see 'snap diff --help'",
    ]


@pytest.mark.parametrize(
    "words",
    [["create", "-q"], ["status"], ["list", "-n", "3"], ["diff", "--stat"], ["restore", "latest"]],
)
def test_a_plain_command_line_does_not_import_click(words, snap, environment, root):
    snap("create")
    program = (
        "import sys; from treesnap.cli.main import execute; "
        f"code = execute({words!r}); print(code, 'click' in sys.modules, file=sys.stderr)"
    )

    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=root, capture_output=True, check=True
    )

    assert result.stderr.decode().splitlines()[-1] == "0 False"
