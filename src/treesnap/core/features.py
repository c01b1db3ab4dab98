"""The features beside the core: which commands each brings, and what to type for its libraries.

The only place where the core names modules of features, as text: nothing is imported before it is
needed, and a feature whose folder was deleted is not missed before it is asked for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.type_names import Any

Commands = Mapping[str, Mapping[str, tuple[str, str]]]
"""By section of the help, commands with their module and the first sentence of their help."""


class Feature(NamedTuple):
    """What a folder beside the core and its command line brings."""

    commands: Commands
    unfinished: str = ""
    """``module:function`` of a handle: returns what was interrupted, for ``doctor``."""
    fetches: str = ""
    """``module:function`` of an invocation, a handle, a REF with a slash and paths to restore:
    returns a REF of the store, after it has brought what that needs."""
    references: Mapping[str, str] = MappingProxyType({})
    """By pattern of REFs that no snapshot of the root has, ``module:function`` of a session, a REF,
    a filter and paths: returns the snapshot that it means, or None."""
    attachments: Mapping[str, str] = MappingProxyType({})
    """By kind of attachment, ``module:function`` of a root and a snapshot that carries one: returns
    how it changes when the files become those of the snapshot, or None where it is gone."""
    extents: str = ""
    """``module:function`` of a session of the store and a snapshot: returns from where to where the
    step went that it was taken for, a ``StepExtent``, or None where nothing is known of that."""
    carries_out: Mapping[str, str] = MappingProxyType({})
    """By the command that a watcher carries out for other processes, ``module:function`` of the
    watcher's context and a request: returns the reply, or nothing if that process has to do it."""


FEATURES = {
    "remote": Feature(
        {
            "Remotes": {
                "remote": (
                    "treesnap.remote.commands.remote",
                    "Keep history on object storage or on another disk.",
                ),
                "push": (
                    "treesnap.remote.commands.transfer",
                    "Store snapshots of the root on a remote.",
                ),
                "fetch": (
                    "treesnap.remote.commands.transfer",
                    "Bring a history of another machine into the store.",
                ),
                "pull": (
                    "treesnap.remote.commands.transfer",
                    "Bring what another machine changed into the root.",
                ),
                "clone": (
                    "treesnap.remote.commands.transfer",
                    "Make a directory of a history on a remote.",
                ),
            },
        },
        references={"(?s).*/.*": "treesnap.remote.fetched:find_fetched"},
        fetches="treesnap.remote.commands.transfer:fetched_ref",
    ),
    "agents": Feature(
        {
            "Agents": {
                "agent": (
                    "treesnap.agents.commands.agent",
                    "Install hooks in the hosts of agents, and show their state.",
                ),
                "hook": (
                    "treesnap.agents.commands.hook",
                    "Capture the root before an agent's prompt or tool.",
                ),
                "rewind": (
                    "treesnap.agents.commands.rewind",
                    "Undo what an agent did since its newest prompt, or since STEP.",
                ),
                "prompts": (
                    "treesnap.agents.commands.prompts",
                    "List what an agent was asked for, newest first, and what it changed.",
                ),
                "mcp": (
                    "treesnap.agents.commands.mcp",
                    "Serve the history of directories to a model, by the Model Context Protocol.",
                ),
            },
        },
        extents="treesnap.agents.step_extents:extent_of",
        carries_out={"hook": "treesnap.agents.commands.hook:carry_out"},
    ),
    "plans": Feature(
        {
            "Automation": {
                "plan": (
                    "treesnap.plans.command",
                    "Run steps in order, with checkpoints to go back to.",
                ),
            },
        },
        unfinished="treesnap.plans.planner:unfinished",
        references={  # a ULID, or its beginning with the time at least
            "(?i)[0-9A-HJKMNP-TV-Z]{10,26}": "treesnap.plans.attached:find_checkpoint",
        },
        attachments={"plan": "treesnap.plans.attached:change_for"},
    ),
    "compat": Feature(
        {
            "Compatibility": {
                "session": (
                    "treesnap.compat.commands.session",
                    "Make and use the checkpoints of Maestro sessions.",
                ),
                "maker": (
                    "treesnap.compat.commands.maker",
                    "Carry out one operation block of MAKER from standard input.",
                ),
            },
        },
    ),
    "timeline": Feature(
        {
            "History": {
                "timeline": (
                    "treesnap.timeline.command",
                    "Look through the history: snapshots, what each changed, and how.",
                ),
            },
        },
    ),
    "mount": Feature(
        {
            "History": {
                "mount": (
                    "treesnap.mount.command",
                    "Show the history as directories at DIR, read-only, until Ctrl-C.",
                ),
                "umount": (
                    "treesnap.mount.command",
                    "End 'snap mount' at DIR, or clear what a killed one left.",
                ),
            },
        },
    ),
    "schedule": Feature(
        {
            "Automation": {
                "schedule": (
                    "treesnap.schedule.command",
                    "Take snapshots of the root regularly, by a timer of systemd.",
                ),
            },
        },
    ),
    "notebook": Feature({}),
    "sandboxes": Feature({}),
}


def with_features(commands: Commands) -> Commands:
    """Returns commands of the core, and in each section those of the features after them.

    Without those of features whose folder is not there.
    """
    merged = {section: dict(listed) for section, listed in commands.items()}
    for feature in _present():
        for section, listed in feature.commands.items():
            merged.setdefault(section, {}).update(listed)
    return merged


def functions(point: str) -> Iterator[Callable[..., Any]]:
    """Yields what the features that are there have at a point of the table, such as ``fetches``."""
    for feature in _present():
        if address := getattr(feature, point):
            yield _imported(address)


def function_for(point: str, word: str) -> Callable[..., Any] | None:
    """Returns what a feature that is there has for a word at a point of the table, or None."""
    for feature in _present():
        if address := getattr(feature, point).get(word):
            return _imported(address)
    return None


def finders(ref: str) -> Iterator[Callable[..., Any]]:
    """Yields what the features that are there have for references such as this one."""
    import re

    for feature in _present():
        for pattern, address in feature.references.items():
            if re.fullmatch(pattern, ref):
                yield _imported(address)


def functions_by_command(point: str) -> dict[str, Callable[..., Any]]:
    """Returns what the features that are there have for commands at a point of the table."""
    return {
        command: _imported(address)
        for feature in _present()
        for command, address in getattr(feature, point).items()
    }


def _imported(place: str) -> Callable[..., Any]:
    from importlib import import_module

    module, _, name = place.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function


def _present() -> Iterator[Feature]:
    """Yields the features whose folder is there."""
    above = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for name, feature in FEATURES.items():
        if os.path.isdir(os.path.join(above, name)):
            yield feature


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
