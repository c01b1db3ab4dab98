"""What each host wants to find in which file, so that it runs ``snap hook``; pure.

All hosts are one table, because they differ in names and little else. What they then tell the
hook is in ``agents.hosts``, which every call of a hook loads; this is loaded to install.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from pkgutil import get_data
from typing import Any

from treesnap.agents.event import Event
from treesnap.agents.hosts.base import filled
from treesnap.agents.hosts.table import host_named
from treesnap.agents.install.json_text import Path
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.ops.history.steps import EventPhase
from treesnap.core.own_program import NAMES

TIMEOUT_S = 30
"""How long a host waits for a hook, which gives up earlier by itself."""
WORKTREE_TIMEOUT_S = 600
"""How long it waits for a working tree: the first snapshot of a large directory is part of that."""
NAME = "treesnap"
"""What our entries are called where entries have names."""
MARK = "made by treesnap"
"""What every file that we write as a whole says in its first two lines."""
_LINE = "{line}"
_COMMAND = {"type": "command", "command": _LINE, "timeout": TIMEOUT_S}
_EVENTS = (
    *("SessionStart", "UserPromptSubmit", "PreToolUse"),
    *("PostToolUse", "PostToolUseFailure", "Stop"),
)
_MODULE = ("-P", "-m", "treesnap")
_MODULE_FORMS = (_MODULE, _MODULE[1:])
"""What follows the interpreter where no script is called; the second is of earlier versions."""
_OPERATORS = ";&|\n"
"""What a shell reads between two commands."""
_KILLER = ("timeout", "-s", "KILL", "25")
"""Ends a hook that is suspended: after its own time-out, and before the host's."""
_WARNING = "treesnap made no snapshot: its program could not be run"
_NO_SNAPSHOT = "treesnap made no snapshot, and was told to let nothing happen without one"


class Form(Enum):
    """Where in a file a host looks for the entries."""

    GROUPS = "in a list by event are groups, each with a list of entries"
    LISTS = "in a list by event are entries"
    TRIGGERS = "in one list are entries that name their event"
    PLUGIN = "the file is a program"
    SCRIPTS = "each event has a file that is a program"


class Contract(NamedTuple):
    """How to install hooks for a host."""

    title: str
    """What people call it."""
    version: str
    """Of the host, by which the contract was established."""
    user_file: str
    """Below the home directory; of scripts their directory."""
    project_file: str | None = None
    """Below the root; if it is not that of the user."""
    programs: tuple[str, ...] = ()
    """What its program may be called, if that is not the name of the host."""
    form: Form = Form.GROUPS
    events: tuple[str, ...] = _EVENTS
    """In the host's own words; none that says nothing new, because each costs a process."""
    entry: Mapping[str, Any] = _COMMAND
    members: Mapping[str, Any] = {}
    """What the file has to hold beside the entries."""
    worktree_events: tuple[str, ...] = ()
    """Of working trees that a hook makes and removes in the place of the host."""
    strict: Mapping[str, Any] = {}
    """What an entry holds besides, for hosts that can be told to block where a hook fails."""
    is_stopped_by_failure: bool = False
    """Whether any failure of a hook keeps it from going on, also of one that cannot be run."""
    variable: str | None = None
    """Of the environment: what is in the place of the user file's first directory."""
    is_tried: bool = True
    """Whether the contract was tried in the host itself, and not only read about."""
    next_step: str | None = None
    """What the user has to do then."""


CONTRACTS: Mapping[str, Contract] = {
    "claude": Contract(
        *("Claude Code", "2.1.332", ".claude/settings.json"),
        project_file=".claude/settings.local.json",  # not shared: the line has a local path
        events=(*_EVENTS, "SubagentStop"),
        worktree_events=("WorktreeCreate", "WorktreeRemove"),
        strict={"onFailure": "block"},
        variable="CLAUDE_CONFIG_DIR",
    ),
    "codex": Contract(
        *("Codex", "0.171", ".codex/hooks.json"),
        events=tuple(event for event in _EVENTS if event != "PostToolUseFailure"),
        variable="CODEX_HOME",
        next_step="Codex runs no hook before you trust it: type /hooks there",
    ),
    "gemini": Contract(
        *("Gemini CLI", "0.61", ".gemini/settings.json"),
        events=("SessionStart", "BeforeAgent", "BeforeTool", "AfterTool", "AfterAgent"),
        entry={"name": NAME, **_COMMAND, "timeout": TIMEOUT_S * 1000},
        is_stopped_by_failure=True,
    ),
    "copilot": Contract(
        *("Copilot CLI", "1.0.102", ".copilot/hooks/treesnap.json"),
        project_file=".github/hooks/treesnap.json",
        form=Form.LISTS,
        entry={"type": "command", "bash": _LINE, "timeoutSec": TIMEOUT_S},
        members={"version": 1},
        is_stopped_by_failure=True,
        variable="COPILOT_HOME",
    ),
    "opencode": Contract(
        *("opencode", "1.18", ".config/opencode/plugins/treesnap.js"),
        project_file=".opencode/plugins/treesnap.js",
        form=Form.PLUGIN,
        events=(
            *("session.created", "chat.message", "tool.execute.before"),
            *("tool.execute.after", "session.idle"),
        ),
        variable="XDG_CONFIG_HOME",
    ),
    "cline": Contract(
        *("Cline", "3.0", ".cline/hooks"),
        form=Form.SCRIPTS,
        events=(
            *("TaskStart", "TaskResume", "UserPromptSubmit"),
            *("PreToolUse", "PostToolUse", "TaskComplete"),
        ),
    ),
    "cursor": Contract(
        *("Cursor", "2.1", ".cursor/hooks.json"),
        programs=("cursor-agent", "cursor"),
        form=Form.LISTS,
        events=("sessionStart", "beforeSubmitPrompt", "preToolUse", "postToolUse", "stop"),
        entry={"command": _LINE},  # sources disagree about the unit of a time-out
        members={"version": 1},
        strict={"failClosed": True},
        is_tried=False,
    ),
    "windsurf": Contract(
        *("Windsurf", "1.13", ".codeium/windsurf/hooks.json"),
        project_file=".windsurf/hooks.json",
        form=Form.LISTS,
        events=(
            *("pre_user_prompt", "pre_write_code", "pre_run_command", "pre_mcp_tool_use"),
            *("post_write_code", "post_run_command", "post_mcp_tool_use"),
            "post_cascade_response",
        ),
        entry={"command": _LINE},
        is_tried=False,
    ),
    "kiro": Contract(
        *("Kiro", "3.0", ".kiro/hooks/treesnap.json"),
        programs=("kiro-cli", "kiro"),
        form=Form.TRIGGERS,
        events=("UserPromptSubmit", "PreToolUse", "PostToolUse", "Stop"),
        entry={
            "name": NAME,
            "trigger": "{event}",
            "action": {"type": "command", "command": _LINE},
            "timeout": TIMEOUT_S,
            "enabled": True,
        },
        members={"version": "v1"},
        is_tried=False,
    ),
    "vscode": Contract(
        *("VS Code", "1.110", ".copilot/hooks/treesnap-vscode.json"),
        project_file=".github/hooks/treesnap-vscode.json",
        programs=("code", "code-insiders"),
        form=Form.LISTS,
        events=tuple(event for event in _EVENTS if event != "PostToolUseFailure"),
        variable="COPILOT_HOME",
        is_tried=False,
    ),
}
"""By the name of the host, in the order of ``agents.hosts``."""


class HookEntry(NamedTuple):
    """One entry of ours in a file of settings."""

    path: Path
    """Of the list that it belongs to."""
    value: Mapping[str, Any]


def settings_path(
    host: str, directory: str, environ: Mapping[str, str], *, for_project: bool
) -> str:
    """Returns the path of a host's settings, in a root or in the home directory."""
    contract = CONTRACTS[host]
    if for_project:
        return os.path.join(directory, contract.project_file or contract.user_file)
    given = environ.get(contract.variable or "", "")
    if not os.path.isabs(given):
        return os.path.join(directory, contract.user_file)
    return os.path.join(given, contract.user_file.partition("/")[2])


def paths_of(host: str, path: str) -> list[str]:
    """Returns the paths of a host's files, of which there are several if they are scripts."""
    contract = CONTRACTS[host]
    is_directory = contract.form is Form.SCRIPTS
    return [os.path.join(path, event) for event in contract.events] if is_directory else [path]


def entries(
    host: str, words: Sequence[str], *, is_strict: bool, makes_worktrees: bool = False
) -> list[HookEntry]:
    """Returns what belongs into a host's settings; ``words`` call ``snap``."""
    contract = CONTRACTS[host]
    listed = []
    for event in contract.events:
        line = hook_line(host, words, event, is_strict=is_strict)
        value = filled(contract.entry, line=line, event=event)
        value |= contract.strict if is_strict and _is_blocked(host, event) else {}
        if contract.form is Form.GROUPS:
            value = {"hooks": [value]}
        path = ("hooks",) if contract.form is Form.TRIGGERS else ("hooks", event)
        listed.append(HookEntry(path, value))
    for event in contract.worktree_events if makes_worktrees else ():
        line = shlex.join([*words, "hook", host])
        value = filled(contract.entry, line=line, event=event) | {"timeout": WORKTREE_TIMEOUT_S}
        listed.append(HookEntry(("hooks", event), {"hooks": [value]}))
    return listed


def programs(
    host: str, path: str, words: Sequence[str], *, is_strict: bool
) -> Iterator[tuple[str, bytes]]:
    """Yields paths and contents of the files that a host runs, or nothing for settings."""
    contract = CONTRACTS[host]
    if contract.form is Form.SCRIPTS:
        for event in contract.events:
            line = hook_line(host, words, event, is_strict=is_strict)
            script = f"#!/bin/sh\n# {MARK}, whose command 'agent uninstall {host}' removes this\n"
            yield os.path.join(path, event), f"{script}{line}\n".encode()
    if contract.form is Form.PLUGIN:
        text = (get_data(__package__, "opencode.js") or b"").decode()
        values = {
            "LINE": [*words, "hook", host, *(["--strict"] if is_strict else [])],
            "TIMEOUT_MS": TIMEOUT_S * 1000,
            "IS_STRICT": is_strict,
        }
        for name, value in values.items():
            text = text.replace(f'"{{{name}}}"', json.dumps(value, ensure_ascii=False))
        yield path, text.encode()


def hook_line(host: str, words: Sequence[str], event: str, *, is_strict: bool) -> str:
    """Returns the line that a shell runs at an event.

    Some hosts ask the user to trust a line again whenever it changes, so nothing is in it that
    could change. A strict one blocks also if the program is gone, killed or suspended: most
    hosts go on then. Where a host would not, one that is not strict lets it. ``timeout`` is of
    coreutils and of busybox.
    """
    contract = CONTRACTS[host]
    form = contract.form
    hooked = host_named(host)
    name, phase = _event(host, event)
    named = [*words, "hook", host]
    named += [name] if form in (Form.SCRIPTS, Form.TRIGGERS) else []
    named += ["--strict"] if is_strict else []
    line = shlex.join(named)
    blocks = is_strict and phase in hooked.blocked_phases
    if not blocks and form is not Form.SCRIPTS and not contract.is_stopped_by_failure:
        return line
    told = Event(host, phase, root="/", session=host)
    reply = hooked.block(told, _NO_SNAPSHOT) if blocks else hooked.go_on(told, warning=_WARNING)
    said = [f"printf '%s\\n' {shlex.quote(reply.stdout.strip())}"] if reply.stdout else []
    said += [f"echo {shlex.quote(reply.stderr.strip())} >&2"] if reply.stderr else []
    said.append(f"exit {reply.exit_code}")
    return f"{shlex.join(_KILLER)} {line} || {{ {'; '.join(said)}; }}"


def _event(host: str, event: str) -> tuple[str, EventPhase]:
    """Returns what a host calls an event when it tells it, and the phase."""
    phases = host_named(host).phases.items()
    return next((name, phase) for name, phase in phases if name.lower() == event.lower())


def _is_blocked(host: str, event: str) -> bool:
    return _event(host, event)[1] in host_named(host).blocked_phases


def line_of(value: object, host: str) -> str | None:
    """Returns the line in an entry if it is one of ours, by whatever path and version; or None."""
    if not isinstance(value, dict):
        return None
    inner = value.get("action")
    fields = inner if isinstance(inner, dict) else value
    for name in ("command", "bash"):
        line = fields.get(name)
        if isinstance(line, str) and caller_in(line, host) is not None:
            return line
    return None


def caller_in(line: str, host: str) -> list[str] | None:
    """Returns the words before ``hook`` in a line of ours, or None for the line of another."""
    try:
        words = _shell_words(line)
    except ValueError:
        return None
    if words[: len(_KILLER)] == list(_KILLER):
        words = words[len(_KILLER) :]
        if "||" in words and words[-1] == "}":
            words = words[: words.index("||")]
    if not words or any(map(_is_operator, words)):  # then it is also a line of the user
        return None
    end = 1 + next((len(form) for form in _MODULE_FORMS if _is_form(words, form)), 0)
    is_module = end > 1
    while words[end : end + 1] == ["--store"]:
        end += 2
    is_ours = is_module or os.path.basename(words[0]) in NAMES
    return words[:end] if is_ours and words[end : end + 2] == ["hook", host] else None


def protected(caller: Sequence[str]) -> list[str]:
    """Returns the words of a caller in a line of ours as this version writes them."""
    is_old = tuple(caller[1:3]) == _MODULE[1:]
    return [caller[0], *_MODULE, *caller[3:]] if is_old else list(caller)


def _is_form(words: Sequence[str], form: tuple[str, ...]) -> bool:
    return tuple(words[1 : 1 + len(form)]) == form


def _shell_words(line: str) -> list[str]:
    """Returns the words of a line, and what is between commands; raises ValueError."""
    lexer = shlex.shlex(line.strip(), posix=True, punctuation_chars=_OPERATORS)
    lexer.whitespace = " \t\r"
    lexer.whitespace_split = True
    lexer.commenters = ""
    return list(lexer)


def _is_operator(word: str) -> bool:
    return word != "" and set(word) <= set(_OPERATORS)


def is_marked(content: bytes) -> bool:
    """Returns whether we have written a file as a whole."""
    return MARK.encode() in b"\n".join(content.split(b"\n", 2)[:2])


def line_in_program(content: bytes) -> str | None:
    """Returns the line that a file of ours runs, or None for that of another or an edited one."""
    text = content.decode("utf-8", "replace")
    if not is_marked(content):
        return None
    match = re.search(r"^const LINE = (\[.+\])$", text, re.MULTILINE)
    if match is None:
        return text.splitlines()[-1]
    with suppress(ValueError, TypeError):
        return shlex.join(json.loads(match[1]))
    return None
