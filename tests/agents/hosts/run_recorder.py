"""Records what hosts really tell their hooks, as fixtures of ``tests/agents``.

``python -m hosts.run_recorder HOSTS_DIRECTORY [HOST...]`` runs each host offline: a prompt after
which a tool removes a directory, another one reads a file and a third one edits it; in the resumed
session a prompt after which a tool fails; and, where the host has that, one after which a command
goes on in the background and an agent starts another one. Paths, ids and times in the payloads are
replaced by others.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hosts.drivers import HOSTS, CannotInstall, Host
from hosts.model_server import Step
from hosts.namespace import Namespace

PAYLOADS = Path(__file__).parents[2] / "agents" / "payloads"
RECORDER = Path(__file__).with_name("recorder.sh")
DONE: Step = {"text": "done"}

Recorded = tuple[str, dict[str, Any]]
"""The name of an event, and its payload."""


def record(host: Host, base: Path, network: Namespace) -> dict[str, str]:
    """Returns anonymous payloads by the names of their files."""
    home = base / "anna"
    project = home / "project"
    (project / "build").mkdir(parents=True)
    (project / "a.txt").write_text("a")
    reading = [step for step in [host.reading(str(project / "a.txt"))] if step]
    found: dict[str, str] = {}
    change = anonymiser(base)

    def run(prompt: str, script: list[Step], session: str | None) -> list[Recorded]:
        directory = Path(tempfile.mkdtemp(dir=base))
        host.add_hooks(home, [str(RECORDER), str(directory)])
        host.run(prompt, script, home, project, network=network, session=session)
        return recorded(directory)

    edit = host.editing(str(project / "a.txt"), "a", "b")
    steps = [host.shell("rm -rf build"), *reading, edit, DONE]
    first = run("tidy up the build directory", steps, None)
    for event, payload in first:
        found.setdefault(f"{event}{kind_of(host, payload)}", change(payload))
    if host.can_resume:
        session = session_of(payload for _, payload in first)
        for event, payload in run("and the tests", [host.shell("exit 3"), DONE], session):
            name = f"{event}-resumed" if event == "SessionStart" else event
            found.setdefault(name, change(payload))
    beside = [host.background("true"), host.delegating("do your part")]
    if any(beside):
        script = [step for step in beside if step]
        script += [host.shell("true"), {"text": "my part is done"}, host.shell("sleep 1"), DONE]
        for event, payload in run("start the server", script, None):
            if kind := kind_of(host, payload):
                found.setdefault(f"{event}{kind}", change(payload))
    return found


def kind_of(host: Host, payload: dict[str, Any]) -> str:
    """Returns what is added to the name of an event for what it is about."""
    call = payload.get("tool_call") or payload.get("tool_result") or {}
    name = payload.get("tool_name") or payload.get("tool") or call.get("name")
    text = json.dumps(payload)
    reading, editing = host.reading(""), host.editing("", "", "")
    background = host.background("") or {"arguments": {}}
    marks = set(background["arguments"].items()) - {("command", ""), ("description", "Run it")}
    kinds = {
        "-wake": "<task-notification>" in text,
        "-agent": bool(payload.get("agent_type") or payload.get("parent_agent_id")),
        "-read": reading is not None and name in (reading["tool"], "Read"),
        "-edit": name in (editing["tool"], "Edit"),
        "-background": any(f'"{key}": {json.dumps(value)}' in text for key, value in marks),
    }
    if host.name == "codex":
        kinds["-edit"] = "*** Begin Patch" in text
    return next((kind for kind, is_so in kinds.items() if is_so), "")


def recorded(directory: Path) -> list[Recorded]:
    """Returns what hooks were told, oldest first."""
    files = sorted(directory.glob("*.json"))
    return [(file.stem.partition("-")[2], json.loads(file.read_text())) for file in files]


def session_of(payloads: Iterable[dict[str, Any]]) -> str:
    """Returns the id by which a session is resumed."""
    for payload in payloads:
        found = payload | payload.get("sessionContext", {})
        for name in ("session_id", "sessionID", "rootSessionId"):
            if name in found:
                return str(found[name])
    raise LookupError("no payload names a session")


def anonymiser(base: Path) -> Callable[[dict[str, Any]], str]:
    """Returns what replaces paths, ids and times in payloads, the same ones in each by the same."""
    seen: dict[str, str] = {}

    def replace(pattern: str, form: Callable[[int], str], text: str) -> str:
        def other(match: re.Match[str]) -> str:
            return seen.setdefault(match[0], form(len(seen)))

        return re.sub(pattern, other, text)

    def change(payload: dict[str, Any]) -> str:
        text = json.dumps(payload, indent=2, ensure_ascii=False)
        text = text.replace(str(base), "/srv")
        text = text.replace(re.sub(r"[^0-9A-Za-z]", "-", str(base)), "-srv")
        uuid = r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"
        for match in re.findall(uuid, text):
            text = text.replace(f"-{match[:8]}.json", "-3f7d2c1e.json")
        text = replace(uuid, lambda n: f"3f7d2c1e-8a44-4b0e-9a55-0d1c2b3a4f{n:02x}", text)
        iso = r"\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z"
        text = replace(iso, lambda n: f"2026-11-02T10:00:00.{n:03}Z", text)
        text = re.sub(r"\b20\d\d-\d\d-\d\dT\d\d-\d\d(-\d\d)?", r"2026-11-02T10-00", text)
        text = re.sub(r"/sessions/20\d\d/\d\d/\d\d/", "/sessions/2026/11/02/", text)
        text = replace(r"\b1[789]\d{11}\b", lambda n: str(1793613600000 + n), text)
        for name in re.findall(r'(?<="backgroundTaskId": ")\w+|(?<=<task-id>)\w+', text):
            text = text.replace(name, "task_00")
        for name in re.findall(r'(?<="agent_id": ")a[0-9a-f]{16}\b', text):
            text = text.replace(name, "agent_00")
        text = re.sub(r"(?<=_)[0-9a-f]{8}x(\d+)", lambda match: f"{int(match[1]):02}", text)
        text = replace(
            r"(?<!\d)\d{13}_[0-9a-z]{5,7}\b", lambda n: f"1793613600000_anna{n:02}", text
        )
        text = replace(r"(?<=\b(?:ses|msg|prt)_)[0-9A-Za-z]{20,}", lambda n: f"{n:02}", text)
        text = re.sub(r'(?<="duration_ms": )\d+', "12", text)
        return re.sub(r"(?<=PGID: )\d+", "1234", text) + "\n"

    return change


def main() -> None:
    """Writes the fixtures of all hosts, or of some."""
    directory, *names = sys.argv[1:]
    for name in names or HOSTS:
        host = HOSTS[name](Path(directory))
        try:
            host.install()
        except CannotInstall as error:
            print(f"{name}: not installed: {error}")
            continue
        with tempfile.TemporaryDirectory() as base, Namespace(Path(base) / "model") as network:
            files = record(host, Path(base), network)
        target = PAYLOADS / f"{name}-{host.version()}"
        target.mkdir(parents=True, exist_ok=True)
        for event, text in files.items():
            (target / f"{event}.json").write_text(text)
        print(f"{target.name}: {', '.join(files)}")


if __name__ == "__main__":
    main()
