"""Which hosts are there, where our hooks are in their settings, and whether they will be run.

A host that can be asked is asked, for a bounded time; of others their switches are read. What
remains unknown is None.
"""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any
from urllib.parse import unquote

from treesnap.agents.conversation import way_of
from treesnap.agents.host_process import HostFailed, HostProcess, JsonTalk, host_program
from treesnap.agents.hosts.base import Payload
from treesnap.agents.install.host_settings import (
    CONTRACTS,
    NAME,
    Form,
    caller_in,
    entries,
    line_in_program,
    paths_of,
    programs,
    protected,
)
from treesnap.agents.install.installer import (
    SettingsPlace,
    has_worktree_hooks,
    holds_exactly,
    own_lines,
    parsed,
)
from treesnap.agents.install.settings_file import look
from treesnap.core.model.errors import TreesnapError
from treesnap.core.model.named_tuple import NamedTuple

TIMEOUT_S = 10.0
"""How long all hosts together have to tell their versions, and Codex what it trusts."""
_OFF: Mapping[str, Mapping[str, object]] = {
    "claude": {"disableAllHooks": True},
    "gemini": {
        "hooksConfig.enabled": False,
        "hooksConfig.disabled": NAME,
        "hooks.enabled": False,
        "hooks.disabled": NAME,  # earlier versions
    },
    "copilot": {"disableAllHooks": True},
}
"""Settings that switch hooks off: the value, or one in the list that it is."""
_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "claude": (".claude/settings.json", ".claude/settings.local.json"),
    "gemini": (".gemini/settings.json",),
    "copilot": (
        *(".copilot/settings.json", ".copilot/config.json", ".copilot/hooks/treesnap.json"),
        *(".github/hooks/treesnap.json", ".github/copilot/settings.json"),
        ".github/copilot/settings.local.json",
    ),
}
"""Files with switches, below the home directory or the root."""
_MANAGED: Mapping[str, str] = {
    "claude": "/etc/claude-code/managed-settings.json",
    "gemini": "/etc/gemini-cli/settings.json",
}
_MANAGED_OFF: Mapping[str, Mapping[str, object]] = {"claude": {"allowManagedHooksOnly": True}}
"""Those that only an administrator can set."""

_PACKAGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "claude": ("enabledPlugins", ("settings.json",)),
    "codex": ("plugins", ("config.toml",)),
    "gemini": ("name", (f"extensions/{NAME}/gemini-extension.json",)),
    "opencode": ("plugin", ("../opencode.json", "../opencode.jsonc")),
}
"""Under which key a host says which packages it has, and in which files beside its settings."""
_PROJECT_PACKAGES: Mapping[str, tuple[str, ...]] = {
    "opencode": ("../../opencode.json", "../../opencode.jsonc"),
}
"""Files of a project that say it as well."""
_PACKAGE_NAME = f"opencode-{NAME}"
"""Of the package whose directory opencode is told, wherever that lies."""


class InstalledHooks(NamedTuple):
    """Our hooks in one place."""

    for_project: bool
    path: str
    program: str
    """What they run."""
    is_strict: bool
    is_current: bool
    """Whether they are what this version installs for that program."""
    makes_worktrees: bool = False
    """Whether they make working trees in the place of the host."""


class ConversationWay(NamedTuple):
    """What takes the conversations of a host back."""

    way: str
    """In a few words."""
    tried: str
    """The version of the host with which that was tried."""


class HostStatus(NamedTuple):
    """What is known of a host."""

    host: str
    title: str
    contract: str
    """The version of the host that our hooks are made for."""
    program: str | None
    """Where the host is, or None where it was not found."""
    version: str | None
    hooks: tuple[InstalledHooks, ...]
    runs: bool | None
    """Whether the host will run them; None where that is not known or there are none."""
    problems: tuple[str, ...]
    conversation: ConversationWay | None = None
    """How its conversations go back, if a way is known."""
    last_event_ns: int | None = None


def host_statuses(
    hosts: Sequence[str], places: Sequence[SettingsPlace], newest_ns: Mapping[str, int]
) -> list[HostStatus]:
    """Returns the state of hosts, with the time of each one's newest event from ``newest_ns``.

    The last place is the project; before it is the user's, where there is a home directory.
    """
    environ = places[-1].environ
    programs_by_host = {
        host: host_program(CONTRACTS[host].programs or (host,), environ) for host in hosts
    }
    there = {host: program for host, program in programs_by_host.items() if program is not None}
    versions = _versions(there, environ)
    return [
        _status(host, places, programs_by_host[host], versions.get(host), newest_ns.get(host))
        for host in hosts
    ]


def _status(
    host: str,
    places: Sequence[SettingsPlace],
    program: str | None,
    version: str | None,
    last_event_ns: int | None,
) -> HostStatus:
    contract, environ = CONTRACTS[host], places[-1].environ
    hooks: list[InstalledHooks] = []
    problems: list[str] = []
    for place in places:
        try:
            hooks += _installed(host, place)
        except TreesnapError as error:
            problems.append(error.message)
    packaged = [hook for place in places for hook in _packaged(host, place)]
    is_known = contract.is_tried and program is not None and bool(hooks)
    hooks += packaged
    runs: bool | None = None
    if hooks:
        stops = [*_gone(hooks, environ), *_switches(host, places)]
        if environ.get("SNAP_DISABLE"):
            stops.append("SNAP_DISABLE is set")
        runs = False if stops else (True if is_known else None)
        if host == "codex" and not stops and program is not None:
            runs, trust = _trusted(program, places[-1].directory, environ)
            stops += trust
        problems += stops
        problems += [
            f"{item.path} is not what this version installs"
            for item in hooks
            if not item.is_current
        ]
    return HostStatus(
        host=host,
        title=contract.title,
        contract=contract.version,
        program=program,
        version=version,
        hooks=tuple(hooks),
        runs=runs,
        problems=tuple(problems),
        conversation=ConversationWay(*way) if (way := way_of(host)) is not None else None,
        last_event_ns=last_event_ns,
    )


def _installed(host: str, place: SettingsPlace) -> Iterator[InstalledHooks]:
    """Yields our hooks in a place; raises TreesnapError where they cannot be read."""
    contract = CONTRACTS[host]
    path = place.path(host)
    contents = {name: look(place.fs, name).content for name in paths_of(host, path)}
    held = [content for content in contents.values() if content is not None]
    if contract.form in (Form.PLUGIN, Form.SCRIPTS):
        lines = list(filter(None, map(line_in_program, held)))
    else:
        value = parsed(path, held[0]).value if held else {}
        lines = [line for _, line in own_lines(value, host)]
    callers = [(line, caller) for line in lines if (caller := caller_in(line, host)) is not None]
    if not callers:
        return
    line, caller = callers[0]
    wanted_caller = protected(caller)
    is_strict, makes_worktrees = "--strict" in shlex.split(line), False
    if contract.form in (Form.PLUGIN, Form.SCRIPTS):
        expected = dict(programs(host, path, wanted_caller, is_strict=is_strict))
        is_current = contents == expected
    else:
        makes_worktrees = has_worktree_hooks(value, host)
        intended = entries(
            host, wanted_caller, is_strict=is_strict, makes_worktrees=makes_worktrees
        )
        is_current = holds_exactly(value, host, intended)
    yield InstalledHooks(place.for_project, path, caller[0], is_strict, is_current, makes_worktrees)


def _packaged(host: str, place: SettingsPlace) -> Iterator[InstalledHooks]:
    """Yields the hooks of a package that a host has; it may be disabled in other ways."""
    if host not in _PACKAGES:
        return
    key, names = _PACKAGES[host]
    names += _PROJECT_PACKAGES.get(host, ()) if place.for_project else ()
    for name in names:
        path = os.path.normpath(os.path.join(os.path.dirname(place.path(host)), name))
        named: Any = None
        with suppress(TreesnapError, ValueError):
            content = look(place.fs, path).content or b"{}"
            is_toml = name.endswith(".toml")
            value = tomllib.loads(content.decode()) if is_toml else parsed(path, content).value
            named = value.get(key)
        if isinstance(named, dict):
            switches = {
                name: v.get("enabled") if isinstance(v, dict) else v for name, v in named.items()
            }
            named = [name for name, is_enabled in switches.items() if is_enabled is not False]
        items = named if isinstance(named, list) else [named]
        if any(_is_own_package(place, item, os.path.dirname(path)) for item in items):
            yield InstalledHooks(place.for_project, path, NAME, is_strict=False, is_current=True)


def _is_own_package(place: SettingsPlace, item: object, directory: str) -> bool:
    """Returns whether a host is told to load our package: by its name, or by where it lies.

    What lies somewhere says itself what it is, whatever the directory is called.
    """
    spec = item[0] if isinstance(item, list) and item else item  # the rest are options
    if not isinstance(spec, str):
        return False
    if not spec.startswith(("file://", "/", "./", "../")):
        return NAME in spec
    path = unquote(spec.removeprefix("file://")) if spec.startswith("file://") else spec
    path = os.path.normpath(os.path.join(directory, path))
    for above in (path, os.path.dirname(path)):  # the package, or a file of it
        with suppress(TreesnapError):
            file = os.path.join(above, "package.json")
            content = look(place.fs, file).content
            if content is not None:
                return bool(parsed(file, content).value.get("name") == _PACKAGE_NAME)
    return False


def _gone(hooks: Iterable[InstalledHooks], environ: Mapping[str, str]) -> Iterator[str]:
    for item in hooks:
        if host_program([item.program], environ) is None:
            yield f"{item.path} runs {item.program}, which is not there"


def _switches(host: str, places: Sequence[SettingsPlace]) -> Iterator[str]:
    """Yields which settings switch hooks off."""
    paths = [
        os.path.join(place.directory, name) for place in places for name in _SETTINGS.get(host, ())
    ]
    users = [os.path.dirname(place.path(host)) for place in places if not place.for_project]
    paths += [  # a variable may have moved it
        os.path.join(user, os.path.basename(name))
        for user in users
        for name in _SETTINGS.get(host, ())[:1]
    ]
    off = _OFF.get(host, {})
    rows = [(path, off) for path in dict.fromkeys(paths)]
    if host in _MANAGED:
        rows.append((_MANAGED[host], {**off, **_MANAGED_OFF.get(host, {})}))
    for path, switches in rows:
        settings = Payload({})
        with suppress(TreesnapError):
            settings = Payload(parsed(path, look(places[-1].fs, path).content or b"{}").value)
        for name, value in switches.items():
            setting = settings.value(name)
            if setting is value or (isinstance(setting, list) and value in setting):
                yield f"{path} switches hooks off: {name}"


def _versions(programs: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the versions of programs that tell one within the time."""
    versions: dict[str, str] = {}
    with ExitStack() as stack:
        started: dict[str, HostProcess] = {}
        for host, program in programs.items():
            with suppress(OSError):
                process = HostProcess([program, "--version"], environ, timeout_s=TIMEOUT_S)
                started[host] = process
                stack.callback(process.end, is_gentle=False)
                process.tell_nothing_more()
        for host, process in started.items():
            with suppress(HostFailed):
                number = re.search(rb"\d+(?:\.\d+)+", process.said.rest())
                if number is not None:
                    versions[host] = number.group().decode()
    return versions


def _trusted(
    program: str, directory: str, environ: Mapping[str, str]
) -> tuple[bool | None, list[str]]:
    """Returns whether Codex trusts our hooks, None if it does not say, and what is wrong."""
    listed: Any = None
    words = [program, "app-server"]
    with (
        suppress(OSError, HostFailed, LookupError, TypeError, AttributeError),
        HostProcess(words, environ, timeout_s=TIMEOUT_S, directory=directory) as process,
    ):
        talk = JsonTalk(process, is_framed=False)
        talk.ask("initialize", clientInfo={"name": "treesnap", "version": "1"})
        talk.tell("initialized")
        parts = talk.ask("hooks/list", cwds=[directory])["data"]
        hooks = [hook for part in parts for hook in part["hooks"]]
        listed = [hook for hook in hooks if isinstance(hook, dict)]
    if listed is None:
        return None, ["Codex did not say whether it trusts the hooks"]
    ours = [hook for hook in listed if caller_in(str(hook.get("command")), "codex") is not None]
    trusts = {hook.get("trustStatus") for hook in ours} <= {"trusted", "managed"}
    if ours and trusts and all(hook.get("enabled") is not False for hook in ours):
        return True, []
    what = "found no hooks of treesnap" if not ours else "does not trust the hooks, or they are off"
    return False, [f"Codex {what}: type /hooks there"]
