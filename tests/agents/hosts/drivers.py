"""Real hosts: how each is installed, pointed at a scripted model, run, and given hooks.

A host is a subclass of `Host`; `HOSTS` names them all. Nothing here asks a model or leaves this
machine but `Host.install`, which uses pip and npm.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from hosts.model_server import Step
from hosts.namespace import Namespace, Transcript

SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
INSTALL_TIMEOUT_S = 1200
NPM = ("npm", "install", "--no-audit", "--no-fund", "--loglevel=error")
MODEL = "scripted"
CODEX_SETTINGS = """\
model = "scripted"
model_provider = "scripted"

[model_providers.scripted]
name = "scripted"
base_url = "http://127.0.0.1:0/v1"
wire_api = "responses"
env_key = "SCRIPTED_KEY"
"""
HOOK_TIMEOUT_S = 20
"""What hooks may take that tests install themselves."""


class CannotInstall(Exception):
    """A host is not to be had on this machine."""


def install_package(command: Sequence[str]) -> None:
    """Runs pip or npm, politely."""
    try:
        done = subprocess.run(
            ["nice", "-n", "19", *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=INSTALL_TIMEOUT_S,
            cwd="/",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotInstall(str(error)) from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise CannotInstall(lines[-1] if lines else f"exit code {done.returncode}")


def user_variables(home: Path) -> dict[str, str]:
    """Returns all of the environment that a user has."""
    temporary = home / "temporary"
    temporary.mkdir(exist_ok=True)
    return {
        "PATH": SYSTEM_PATH,
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
    }


class Host(ABC):
    """One host, installed in a directory that stays between runs."""

    name: ClassVar[str]
    package: ClassVar[str]
    """Of npm."""
    program: ClassVar[str]
    """Its path below the directory of the host."""
    events: ClassVar[tuple[str, ...]]
    """The hooks that a test of payloads installs."""
    before_tool: ClassVar[str] = "PreToolUse"
    """The event before a tool runs."""
    variables: ClassVar[Mapping[str, str]] = {}
    writes: ClassVar[tuple[bytes, ...]] = ()
    """What it changes in a project by itself, also before its first hook."""
    tells_repository: ClassVar[bool] = False
    """Whether it tells hooks the top of the repository, wherever in it it was started."""
    can_resume: ClassVar[bool] = True
    """Whether a session goes on in another run, without a terminal."""

    def __init__(self, hosts: Path) -> None:
        self.directory = hosts / self.name

    def install(self) -> None:
        """Installs the newest version, unless one is there; raises `CannotInstall`."""
        done = self.directory / "installed"
        if not done.exists():
            self._install()
            done.touch()
        self.version()

    def _install(self) -> None:
        install_package([*NPM, "--prefix", str(self.directory), f"{self.package}@latest"])

    def version(self) -> str:
        """Returns the version, as in names of fixtures; raises `CannotInstall`."""
        package = self.directory / "node_modules" / self.package / "package.json"
        return str(json.loads(package.read_text())["version"])

    def path(self) -> str:
        """Returns the program."""
        return str(self.directory / self.program)

    @abstractmethod
    def prepare(self, home: Path, port: int) -> dict[str, str]:
        """Writes what points the host at the model; returns variables that do."""

    @abstractmethod
    def words(self, prompt: str, session: str | None) -> list[str]:
        """Returns the command line for a prompt, in a session that is known already or not."""

    @abstractmethod
    def shell(self, command: str) -> Step:
        """Returns the model's call of the host's shell tool."""

    def reading(self, path: str) -> Step | None:
        """Returns the model's call of a tool that reads a file, or None if the host has none."""
        return None

    @abstractmethod
    def editing(self, path: str, old: str, new: str) -> Step:
        """Returns the model's call of the host's edit tool, for a file that was read before."""

    def background(self, command: str) -> Step | None:
        """Returns the model's call of the shell tool for a command that goes on after it."""
        return None

    def delegating(self, task: str) -> Step | None:
        """Returns the model's call that starts another agent and waits for it."""
        return None

    @abstractmethod
    def add_hooks(self, home: Path, command: Sequence[str]) -> None:
        """Has each of `events` run a command, with the event's name as the last word."""

    def run(
        self,
        prompt: str,
        script: Sequence[Step],
        home: Path,
        project: Path,
        *,
        network: Namespace,
        session: str | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> Transcript:
        """Runs the host for one prompt, without a terminal, until it ends."""
        own = self.prepare(home, network.port)
        return network.run(
            [self.path(), *self.words(prompt, session)],
            script,
            cwd=project,
            variables={**user_variables(home), **self.variables, **own, **(variables or {})},
        )


def write_json(path: Path, value: Any) -> None:
    """Writes a settings file, and the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2))


def merge_json(path: Path, value: dict[str, Any]) -> None:
    """Adds keys to a settings file, which may be absent."""
    write_json(path, (json.loads(path.read_text()) if path.exists() else {}) | value)


def groups(command: Sequence[str], events: Sequence[str], timeout: int) -> dict[str, Any]:
    """Returns hooks in the form that Claude Code made usual."""
    return {
        event: [
            {
                "hooks": [
                    {"type": "command", "command": " ".join([*command, event]), "timeout": timeout}
                ]
            }
        ]
        for event in events
    }


class Claude(Host):
    """Claude Code: the program inside the wheel of its SDK, which needs no Node."""

    name = "claude"
    program = "claude_agent_sdk/_bundled/claude"
    events = (
        "SessionStart",
        "UserPromptSubmit",
        "UserPromptExpansion",
        "PreToolUse",
        "PostToolUse",
        "PostToolUseFailure",
        "SubagentStop",
        "Stop",
        "SessionEnd",
    )
    variables: ClassVar = {
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "ANTHROPIC_API_KEY": "none",
    }

    def _install(self) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        install_package([*pip, "--target", str(self.directory), "claude-agent-sdk"])

    def version(self) -> str:
        done = subprocess.run(
            [self.path(), "--version"], capture_output=True, text=True, check=False
        )
        return done.stdout.split()[0]

    def prepare(self, home: Path, port: int) -> dict[str, str]:
        return {"ANTHROPIC_BASE_URL": f"http://127.0.0.1:{port}"}

    def words(self, prompt: str, session: str | None) -> list[str]:
        again = ["--resume", session] if session else []
        return ["-p", prompt, *again, "--allowedTools", "Bash,Edit", "--output-format", "json"]

    def shell(self, command: str) -> Step:
        return {"tool": "Bash", "arguments": {"command": command, "description": "Run it"}}

    def background(self, command: str) -> Step:
        step = self.shell(command)
        return {**step, "arguments": {**step["arguments"], "run_in_background": True}}

    def delegating(self, task: str) -> Step:
        arguments = {"description": "A part", "prompt": task, "run_in_background": False}
        return {"tool": "Agent", "arguments": {**arguments, "subagent_type": "general-purpose"}}

    def reading(self, path: str) -> Step:
        return {"tool": "Read", "arguments": {"file_path": path}}

    def editing(self, path: str, old: str, new: str) -> Step:
        arguments = {"file_path": path, "old_string": old, "new_string": new}
        return {"tool": "Edit", "arguments": arguments}

    def add_hooks(self, home: Path, command: Sequence[str]) -> None:
        hooks = groups(command, self.events, HOOK_TIMEOUT_S)
        merge_json(home / ".claude" / "settings.json", {"hooks": hooks})


class Codex(Host):
    """Codex, by ``codex exec``, with hooks trusted unseen."""

    name = "codex"
    package = "@openai/codex"
    program = "node_modules/.bin/codex"
    events = (
        "SessionStart",
        "UserPromptSubmit",
        "PreToolUse",
        "PermissionRequest",
        "PostToolUse",
        "Stop",
        "SessionEnd",
    )
    variables: ClassVar = {"SCRIPTED_KEY": "none"}

    def prepare(self, home: Path, port: int) -> dict[str, str]:
        settings = home / ".codex" / "config.toml"
        settings.parent.mkdir(exist_ok=True)
        text = settings.read_text() if settings.exists() else CODEX_SETTINGS
        settings.write_text(re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{port}", text))
        return {}

    def words(self, prompt: str, session: str | None) -> list[str]:
        again = ["resume", session] if session else []
        return [
            "exec",
            "--skip-git-repo-check",
            "--dangerously-bypass-approvals-and-sandbox",
            "--dangerously-bypass-hook-trust",
            *again,
            prompt,
        ]

    def shell(self, command: str) -> Step:
        return {"tool": "exec_command", "arguments": {"cmd": command}}

    def editing(self, path: str, old: str, new: str) -> Step:
        patch = f"*** Begin Patch\n*** Update File: {path}\n@@\n-{old}\n+{new}\n*** End Patch"
        return self.shell(f"apply_patch <<'END'\n{patch}\nEND")  # which it carries out itself

    def add_hooks(self, home: Path, command: Sequence[str]) -> None:
        hooks = groups(command, self.events, HOOK_TIMEOUT_S)
        merge_json(home / ".codex" / "hooks.json", {"hooks": hooks})


class Gemini(Host):
    """Gemini CLI, whose library takes another address for its model."""

    name = "gemini"
    package = "@google/gemini-cli"
    program = "node_modules/.bin/gemini"
    before_tool = "BeforeTool"
    events = (
        "SessionStart",
        "BeforeAgent",
        "BeforeTool",
        "AfterTool",
        "AfterAgent",
        "SessionEnd",
    )
    variables: ClassVar = {"GEMINI_API_KEY": "none", "GEMINI_CLI_TRUST_WORKSPACE": "true"}

    def prepare(self, home: Path, port: int) -> dict[str, str]:
        auth = {"auth": {"selectedType": "gemini-api-key"}}
        settings = home / ".gemini" / "settings.json"
        merge_json(
            settings,
            {
                "security": auth,
                "privacy": {"usageStatisticsEnabled": False},
                "general": {"disableAutoUpdate": True, "disableUpdateNag": True},
            },
        )
        return {"GOOGLE_GEMINI_BASE_URL": f"http://127.0.0.1:{port}"}

    def words(self, prompt: str, session: str | None) -> list[str]:
        again = ["--resume", session] if session else []
        words = ["--model", MODEL, "--approval-mode", "yolo", "--output-format", "json"]
        return [*again, *words, "-p", prompt]

    def shell(self, command: str) -> Step:
        return {"tool": "run_shell_command", "arguments": {"command": command}}

    def background(self, command: str) -> Step:
        step = self.shell(command)
        return {**step, "arguments": {**step["arguments"], "is_background": True}}

    def reading(self, path: str) -> Step:
        return {"tool": "read_file", "arguments": {"file_path": path}}

    def editing(self, path: str, old: str, new: str) -> Step:
        arguments = {"file_path": path, "old_string": old, "new_string": new}
        return {"tool": "replace", "arguments": {**arguments, "instruction": "Change it"}}

    def add_hooks(self, home: Path, command: Sequence[str]) -> None:
        hooks = groups(command, self.events, HOOK_TIMEOUT_S * 1000)
        merge_json(home / ".gemini" / "settings.json", {"hooks": hooks})


class Copilot(Host):
    """GitHub Copilot CLI, offline, with a provider of one's own."""

    name = "copilot"
    package = "@github/copilot"
    program = "node_modules/.bin/copilot"
    events = (
        "SessionStart",
        "UserPromptSubmit",
        "PreToolUse",
        "PostToolUse",
        "PostToolUseFailure",
        "Stop",
        "SessionEnd",
    )
    variables: ClassVar = {"COPILOT_OFFLINE": "true", "COPILOT_PROVIDER_API_KEY": "none"}

    def prepare(self, home: Path, port: int) -> dict[str, str]:
        return {
            "COPILOT_PROVIDER_BASE_URL": f"http://127.0.0.1:{port}/v1",
            "COPILOT_MODEL": MODEL,
        }

    def words(self, prompt: str, session: str | None) -> list[str]:
        way = f"--resume={session}" if session else "--trust-folder"  # not both
        return [way, "-p", prompt, "--allow-all-tools", "--allow-all-paths"]

    def shell(self, command: str) -> Step:
        return {"tool": "bash", "arguments": {"command": command, "description": "Run it"}}

    def background(self, command: str) -> Step:
        step = self.shell(command)
        return {**step, "arguments": {**step["arguments"], "mode": "async"}}

    def delegating(self, task: str) -> Step:
        arguments = {"description": "A part", "prompt": task, "name": "part", "mode": "sync"}
        return {"tool": "task", "arguments": {**arguments, "agent_type": "general-purpose"}}

    def reading(self, path: str) -> Step:
        return {"tool": "view", "arguments": {"path": path}}

    def editing(self, path: str, old: str, new: str) -> Step:
        arguments = {"path": path, "old_str": old, "new_str": new}
        return {"tool": "edit", "arguments": arguments}

    def add_hooks(self, home: Path, command: Sequence[str]) -> None:
        hooks = {
            event: [
                {
                    "type": "command",
                    "bash": " ".join([*command, event]),
                    "timeoutSec": HOOK_TIMEOUT_S,
                }
            ]
            for event in self.events
        }
        write_json(home / ".copilot" / "hooks" / "test.json", {"version": 1, "hooks": hooks})


RECORDER_PLUGIN = """\
import { spawnSync } from "node:child_process"

const [program, ...words] = COMMAND
const tell = (event, fields) =>
  spawnSync(program, [...words, event], { input: JSON.stringify({ event, ...fields }) })

export const Recorder = async ({ directory }) => ({
  "chat.message": async ({ sessionID }, { message, parts }) => {
    const prompt = parts.map((part) => part.text ?? "").join("\\n")
    tell("chat.message", { directory, sessionID, messageID: message.id, prompt })
  },
  "tool.execute.before": async ({ sessionID, callID, tool }, { args }) => {
    tell("tool.execute.before", { directory, sessionID, callID, tool, args })
  },
  "tool.execute.after": async ({ sessionID, callID, tool, args }) => {
    tell("tool.execute.after", { directory, sessionID, callID, tool, args })
  },
  event: async ({ event: { type, properties } }) => {
    const sessionID = properties?.sessionID ?? properties?.info?.id
    if (["session.created", "session.idle"].includes(type)) tell(type, { directory, sessionID })
  },
})
"""
"""Tells what treesnap's plugin tells; see treesnap.agents.hosts.table.Opencode."""


class Opencode(Host):
    """opencode, whose hooks are functions of a plugin."""

    name = "opencode"
    package = "opencode-ai"
    program = "node_modules/.bin/opencode"
    before_tool = "tool.execute.before"
    events = (
        "chat.message",
        "tool.execute.before",
        "tool.execute.after",
        "event",
    )
    variables: ClassVar = {
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    }
    writes = (b".git/opencode", b".git/objects")

    def _install(self) -> None:
        super()._install()
        library = f"@opencode-ai/plugin@{self.version()}"
        install_package([*NPM, "--prefix", str(self.directory / "plugin"), library])

    def prepare(self, home: Path, port: int) -> dict[str, str]:
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "scripted",
            "options": {"baseURL": f"http://127.0.0.1:{port}/v1", "apiKey": "none"},
            "models": {MODEL: {"name": MODEL}},
        }
        configuration = home / ".config" / "opencode"
        merge_json(
            configuration / "opencode.json",
            {
                "$schema": "https://opencode.ai/config.json",
                "provider": {"scripted": provider},
                "model": f"scripted/{MODEL}",
                "small_model": f"scripted/{MODEL}",
                "permission": "allow",
                "autoupdate": False,
                "share": "disabled",
            },
        )
        for name in ("package.json", "package-lock.json", "node_modules"):
            link = configuration / name
            if not link.exists():  # else it waits for a registry
                link.symlink_to(self.directory / "plugin" / name)
        return {}

    def words(self, prompt: str, session: str | None) -> list[str]:
        again = ["--session", session] if session else []
        return ["run", *again, *prompt.split()]  # a word with spaces gets quotes

    def shell(self, command: str) -> Step:
        return {"tool": "bash", "arguments": {"command": command, "description": "Run it"}}

    def delegating(self, task: str) -> Step:
        arguments = {"description": "A part", "prompt": task, "subagent_type": "general"}
        return {"tool": "task", "arguments": arguments}

    def reading(self, path: str) -> Step:
        return {"tool": "read", "arguments": {"filePath": path}}

    def editing(self, path: str, old: str, new: str) -> Step:
        arguments = {"filePath": path, "oldString": old, "newString": new}
        return {"tool": "edit", "arguments": arguments}

    def add_hooks(self, home: Path, command: Sequence[str]) -> None:
        plugin = home / ".config" / "opencode" / "plugins" / "recorder.js"
        plugin.parent.mkdir(parents=True, exist_ok=True)
        plugin.write_text(RECORDER_PLUGIN.replace("COMMAND", json.dumps(list(command))))


class Cline(Host):
    """Cline's command line."""

    name = "cline"
    package = "cline"
    program = "node_modules/.bin/cline"
    events = (
        "TaskStart",
        "TaskResume",
        "UserPromptSubmit",
        "PreToolUse",
        "PostToolUse",
        "TaskComplete",
        "TaskCancel",
    )
    writes = (b".git/objects",)
    tells_repository = True
    can_resume = False

    def prepare(self, home: Path, port: int) -> dict[str, str]:
        settings = {
            "provider": "openai-compatible",
            "apiKey": "none",
            "model": MODEL,
            "baseUrl": f"http://127.0.0.1:{port}/v1",
        }
        write_json(
            home / ".cline" / "data" / "settings" / "providers.json",
            {
                "version": 1,
                "lastUsedProvider": "openai-compatible",
                "providers": {
                    "openai-compatible": {
                        "settings": settings,
                        "updatedAt": "2026-11-02T10:00:00.000Z",
                        "tokenSource": "manual",
                    }
                },
            },
        )
        return {}

    def words(self, prompt: str, session: str | None) -> list[str]:
        again = ["--id", session] if session else []
        return [*again, "--json", "-P", "openai-compatible", "-k", "none", "-m", MODEL, prompt]

    def shell(self, command: str) -> Step:
        return {"tool": "run_commands", "arguments": {"commands": [command]}}

    def delegating(self, task: str) -> Step:
        return {"tool": "spawn_agent", "arguments": {"systemPrompt": "You help", "task": task}}

    def reading(self, path: str) -> Step:
        return {"tool": "read_files", "arguments": {"files": [{"path": path}]}}

    def editing(self, path: str, old: str, new: str) -> Step:
        arguments = {"path": path, "old_text": old, "new_text": new}
        return {"tool": "editor", "arguments": arguments}

    def add_hooks(self, home: Path, command: Sequence[str]) -> None:
        for event in self.events:
            hook = home / ".cline" / "hooks" / event
            hook.parent.mkdir(parents=True, exist_ok=True)
            hook.write_text(f"#!/bin/sh\nexec {' '.join([*command, event])}\n")
            hook.chmod(0o755)


HOSTS: dict[str, type[Host]] = {
    host.name: host for host in (Claude, Codex, Gemini, Copilot, Opencode, Cline)
}
