"""The features beside the core: which commands each brings, and what to type for its libraries.

The only place where the core names modules of features, as text: nothing is imported before it is
needed, and a feature whose folder was deleted is not missed before it is asked for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache

from treesnap.named_tuple import NamedTuple

Commands = Mapping[str, Mapping[str, tuple[str, str]]]
"""By section of the help, commands with their module and the first sentence of their help."""


class Feature(NamedTuple):
    """What a folder beside the core and its command line brings."""

    commands: Commands


FEATURES = {
    "remote": Feature(
        {
            "Remotes": {
                "remote": (
                    "treesnap.cli.cmd_remote",
                    "Keep history on object storage or on another disk.",
                ),
                "push": ("treesnap.cli.cmd_remote", "Store snapshots of the root on a remote."),
                "fetch": (
                    "treesnap.cli.cmd_remote",
                    "Bring a history of another machine into the store.",
                ),
                "pull": (
                    "treesnap.cli.cmd_remote",
                    "Bring what another machine changed into the root.",
                ),
                "clone": ("treesnap.cli.cmd_remote", "Make a directory of a history on a remote."),
            },
        },
    ),
    "agents": Feature(
        {
            "Agents": {
                "agent": (
                    "treesnap.cli.cmd_agent",
                    "Install hooks in the hosts of agents, and show their state.",
                ),
                "hook": (
                    "treesnap.cli.cmd_hook",
                    "Capture the root before an agent's prompt or tool.",
                ),
                "rewind": (
                    "treesnap.cli.cmd_rewind",
                    "Undo what an agent did since its newest prompt, or since STEP.",
                ),
                "mcp": (
                    "treesnap.cli.cmd_mcp",
                    "Serve the history of directories to a model, by the Model Context Protocol.",
                ),
            },
        },
    ),
    "plans": Feature(
        {
            "Automation": {
                "plan": (
                    "treesnap.cli.cmd_plan",
                    "Run steps in order, with checkpoints to go back to.",
                ),
            },
        },
    ),
    "compat": Feature(
        {
            "Compatibility": {
                "session": (
                    "treesnap.cli.cmd_session",
                    "Make and use the checkpoints of Maestro sessions.",
                ),
                "maker": (
                    "treesnap.cli.cmd_maker",
                    "Carry out one operation block of MAKER from standard input.",
                ),
            },
        },
    ),
    "timeline": Feature(
        {
            "History": {
                "timeline": (
                    "treesnap.cli.cmd_timeline",
                    "Look through the history: snapshots, what each changed, and how.",
                ),
            },
        },
    ),
    "mount": Feature(
        {
            "History": {
                "mount": (
                    "treesnap.cli.cmd_mount",
                    "Show the history as directories at DIR, read-only, until Ctrl-C.",
                ),
                "umount": (
                    "treesnap.cli.cmd_mount",
                    "End 'snap mount' at DIR, or clear what a killed one left.",
                ),
            },
        },
    ),
    "schedule": Feature(
        {
            "Automation": {
                "schedule": (
                    "treesnap.cli.cmd_schedule",
                    "Take snapshots of the root regularly, by systemd or cron.",
                ),
            },
        },
    ),
    "notebook": Feature({}),
}


def with_features(commands: Commands) -> Commands:
    """Returns commands of the core, and in each section those of the features after them.

    Without those of features whose folder is not there.
    """
    found = {section: dict(listed) for section, listed in commands.items()}
    for feature in FEATURES.values():
        for section, listed in feature.commands.items():
            here = {name: entry for name, entry in listed.items() if _is_here(entry[0])}
            if here:
                found.setdefault(section, {}).update(here)
    return found


@cache
def _is_here(module: str) -> bool:
    """Returns whether the folder below treesnap that has a module is there; imports nothing."""
    folder = module.split(".")[1]
    return os.path.isdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), folder))


def feature_of(command: str) -> str | None:
    """Returns the feature that brings a command, or None."""
    for name, feature in FEATURES.items():
        if any(command in listed for listed in feature.commands.values()):
            return name
    return None


@contextmanager
def brought_by(extra: str) -> Iterator[None]:
    """Says in the ModuleNotFoundError of an import in the body what to type."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(missing_text(error, extra), name=error.name) from error


def missing_text(error: ImportError, extra: str) -> str:
    """Returns which module is missing; the text ends with the line to type."""
    return f"The Python module {error.name!r} is missing; type: {command_for(extra)}"


def command_for(extra: str) -> str:
    """Returns the line that installs an extra beside this treesnap.

    A program of pipx or of uv has an environment of its own, which pip does not reach.
    """
    requirement = f"'treesnap[{extra}]'"
    if os.path.exists(os.path.join(sys.prefix, "pipx_metadata.json")):
        return f"pipx inject treesnap {requirement}"
    if os.path.exists(os.path.join(sys.prefix, "uv-receipt.toml")):
        return f"uv tool install {requirement}"
    return f"pip install {requirement}"
