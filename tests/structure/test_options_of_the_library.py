"""What an option of a command does, a keyword of the library does too, or a reason says why not."""

from __future__ import annotations

import inspect

import click
import pytest

from treesnap.cli.commands import COMMANDS
from treesnap.cli.group import snap
from treesnap.core.handle import Handle
from treesnap.core.ops.create import CreateOptions
from treesnap.core.store.maintenance.retention import Policy

PRINTS = "says how it is printed; the library returns records"
REMOTE = "Remotes, which holds what concerns remotes, has a method for it"

NO_METHOD = {
    "completion": "is for shells",
    "schedule": "treesnap.schedule",
    "mount": "treesnap.mount",
    "umount": "treesnap.mount",
    "timeline": "shows what the handle returns",
    "watch": "starts a process; Handle.watch watches in this one",
    "plan": "treesnap.plans.Planner",
    "remote": REMOTE,
    "push": REMOTE,
    "fetch": REMOTE,
    "pull": REMOTE,
    "clone": REMOTE,
    "agent": "changes settings of programs, not files of a root",
    "hook": "speaks the protocols of hosts; treesnap.agents.frameworks is for programs",
    "rewind": "its STEP is one of an agent's host; restore(base=...) undoes up to a snapshot",
    "prompts": "lists those of an agent's host",
    "mcp": "is a server",
    "session": "treesnap.compat.maestro",
    "maker": "treesnap.compat.maker",
}
"""Commands that no method of the handle stands for."""

METHODS = {
    "import": ("import_from",),
    "root": ("root_list", "root_move", "root_forget"),
    "store": ("store_info", "store_trust", "store_copy", "store_move"),
}
"""Methods of commands whose name is another."""

OTHER_KEYWORDS = {
    "adopt": {**dict.fromkeys(("mine", "theirs", "markers"), "conflicts"), "fork": "directory"},
    "revert": dict.fromkeys(("mine", "theirs", "markers"), "conflicts"),
    "create": {
        "counters": "a tag: tags={'counter.NAME': '42'}",
        "automatic": "kind=SnapshotKind.AUTOMATIC",
    },
    "list": {
        "limit": "list()[:N]",
        "phase": "list(tag='phase=...')",
        "type": "list(tag='type=...')",
    },
    "diff": {
        "words": "a, b and paths",
        "stat": PRINTS,
        "name_status": PRINTS,
        "max_size": "contents(max_size_bytes=...)",
        "no_textconv": "contents(as_text=...)",
    },
    "restore": {"patch": "hunks() and restore_hunks()"},
    "log": {"patch": PRINTS, "no_textconv": "contents(as_text=...)"},
    "du": {"sessions": "du_sessions()"},
    "grep": {
        "names": "first_only",
        "count": PRINTS,
        "numbers": PRINTS,
        "has_exit_code": PRINTS,
    },
    "archive": {"output": "to", "compress": "archive_pieces(compression=...)"},
    "status": {"has_exit_code": PRINTS},
    "ls": {"long": PRINTS},
    "run": {"words": "command"},
    "prune": {"max_size": "max_size_bytes"},
    "stats": {"with_snapshots": PRINTS},
    "root": {"root_ref": "root"},
}
"""Options that have no keyword of their name: a keyword or method, or the reason."""

RECORDS = {"create": ("options", CreateOptions), "prune": ("policy", Policy)}
"""Keywords whose fields are options too."""

NAMES = [name for section in COMMANDS.values() for name in section]


def options_of(command: click.Command) -> set[str]:
    """Returns the options and arguments of a command that are not those of every command.

    Those that are tags of a snapshot are ``tags`` in the library.
    """
    is_about_refs = any(
        parameter.name == "session" and not parameter.expose_value for parameter in command.params
    )
    own = {str(parameter.name) for parameter in command.params if parameter.expose_value}
    return own | ({"session"} if is_about_refs else set())


def keywords_of(name: str) -> set[str]:
    """Returns what the methods that stand for a command take."""
    found: set[str] = set()
    for method in METHODS.get(name, (name,)):
        found |= set(inspect.signature(getattr(Handle, method)).parameters)
    if name in RECORDS:
        keyword, record = RECORDS[name]
        assert keyword in found
        found |= set(inspect.signature(record).parameters)
    return found


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NO_METHOD])
def test_every_option_has_a_keyword_or_a_reason(name):
    command = snap.get_command(click.Context(snap), name)
    commands = command.commands.values() if isinstance(command, click.Group) else [command]
    options = set().union(*map(options_of, commands))
    known = OTHER_KEYWORDS.get(name, {})

    assert options - keywords_of(name) == known.keys()


def test_commands_without_a_method_have_none():
    assert [name for name in NO_METHOD if name in vars(Handle) and name != "watch"] == []
    assert NO_METHOD.keys() <= set(NAMES)
