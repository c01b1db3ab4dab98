"""``snap agent``: hooks are installed, shown and taken out by the command line."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from treesnap.agents.install import status
from treesnap.agents.install.installer import SettingsPlace, install
from treesnap.core.fs.local import LocalFileSystem


@pytest.fixture
def home(environment, tmp_path, monkeypatch):
    """The home directory, of a user who calls a program that stays where it is."""
    program = tmp_path / "bin" / "snap"
    program.parent.mkdir()
    program.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "argv", [str(program)])
    environment |= {"PATH": str(program.parent), "XDG_STATE_HOME": "", "CODEX_HOME": ""}
    environment |= {"CLAUDE_CONFIG_DIR": "", "COPILOT_HOME": "", "XDG_CONFIG_HOME": ""}
    return Path(environment["HOME"])


def host(home: Path, name: str, *lines: str) -> None:
    """Puts a program of a host into the path of commands."""
    program = home.parent / "bin" / name
    program.write_text("\n".join(["#!/bin/sh", *lines]))
    program.chmod(0o755)


def test_hooks_are_installed_and_taken_out(snap, home):
    settings = home / ".claude/settings.json"
    settings.parent.mkdir()
    settings.write_text('{"model": "opus"}\n')

    assert snap("agent", "install", "claude", "gemini", "claude").out == (
        f"claude: modified {settings}\ngemini: created {home}/.gemini/settings.json\n"
    )
    line = json.loads(settings.read_text())["hooks"]["PreToolUse"][0]["hooks"][0]["command"]
    assert line == f"{home.parent}/bin/snap hook claude"
    assert snap("agent", "install", "claude").out == f"claude: unchanged {settings}\n"
    assert snap("agent", "uninstall", "claude", "gemini", "codex").out == (
        f"claude: modified {settings}\ngemini: removed {home}/.gemini/settings.json\n"
        f"codex: absent {home}/.codex/hooks.json\n"
    )
    assert settings.read_text() == '{"model": "opus"}\n'


def test_a_dry_run_prints_a_patch(snap, home):
    settings = home / ".cursor/hooks.json"
    settings.parent.mkdir()
    settings.write_text('{\n  "version": 1\n}\n')

    result = snap("agent", "install", "cursor", "windsurf", "--dry-run", "--strict")

    assert result.out.startswith(
        f"--- {settings}\n+++ {settings}\n@@ -1,3 +1,32 @@\n {{\n"
        '-  "version": 1\n+  "version": 1,\n'
    )
    assert f"--- /dev/null\n+++ {home}/.codeium/windsurf/hooks.json\n" in result.out
    assert '+        "failClosed": true\n' in result.out
    assert settings.read_text() == '{\n  "version": 1\n}\n'
    assert snap("agent", "uninstall", "cursor", "--dry-run").err == "Nothing would change\n"


def test_a_project_has_hooks_of_its_own_and_a_store_that_was_named(snap, home, root, tmp_path):
    result = snap("--store", tmp_path / "other", "agent", "install", "codex", "--project", "--json")

    path = root / ".codex/hooks.json"
    assert result.json["files"][0]["path"] == str(path)
    assert f"snap --store {tmp_path}/other hook codex" in path.read_text()
    assert list(home.rglob("*.json")) == [home / ".local/state/treesnap/installed.json"]


def test_settings_that_cannot_be_understood_are_an_error_with_its_place(snap, home):
    settings = home / ".gemini/settings.json"
    settings.parent.mkdir()
    settings.write_text('{\n  "a": 1,\n  "a": 2\n}\n')

    result = snap("agent", "install", "claude", "gemini")

    assert result.code == 2
    assert result.err.endswith("hint: correct the file, which belongs to the host of the agent\n")
    assert "line 3, column 3: the key 'a' is there twice; nothing was changed" in result.err
    assert not (home / ".claude").exists()


def test_words_that_make_no_sense_are_refused(snap, home):
    assert snap("agent", "install").code == 2
    assert snap("agent", "install", "emacs").code == 2
    assert snap("agent", "install", "codex", "--user", "--project").code == 2


def test_status_says_where_hooks_are_and_whether_they_are_run(snap, home):
    host(home, "claude", "echo '2.1.332 (Claude Code)'")
    host(home, "gemini", "exit 1")
    snap("agent", "install", "claude", "gemini", "cursor")

    result = snap("agent", "status", "claude", "gemini", "cursor", "kiro")

    bin_directory = home.parent / "bin"
    assert result.out == (
        f"claude    Claude Code 2.1.332 at {bin_directory}/claude\n"
        f"  user hooks in {home}/.claude/settings.json run {bin_directory}/snap\n"
        "  will be run: yes; made for Claude Code 2.1.332\n"
        "  conversations go back by keys; tried with Claude Code 2.1.332\n"
        f"gemini    Gemini CLI at {bin_directory}/gemini\n"
        f"  user hooks in {home}/.gemini/settings.json run {bin_directory}/snap\n"
        "  will be run: yes; made for Gemini CLI 0.61\n"
        "  conversations go back by keys; tried with Gemini CLI 0.61.0\n"
        "cursor    Cursor: not found\n"
        f"  user hooks in {home}/.cursor/hooks.json run {bin_directory}/snap\n"
        "  will be run: unknown; made for Cursor 2.1\n"
        "kiro      Kiro: not found\n"
    )


@pytest.mark.parametrize(
    ("name", "path", "enabled", "disabled"),
    [
        (
            "claude",
            ".claude/settings.json",
            '{"enabledPlugins": {"treesnap@treesnap": true}}',
            '{"enabledPlugins": {"treesnap@treesnap": false}}',
        ),
        (
            "codex",
            ".codex/config.toml",
            '[plugins."treesnap@treesnap"]\nenabled = true\n',
            '[plugins."treesnap@treesnap"]\nenabled = false\n',
        ),
        (
            "gemini",
            ".gemini/extensions/treesnap/gemini-extension.json",
            '{"name": "treesnap"}',
            "{",
        ),
        (
            "opencode",
            ".config/opencode/opencode.json",
            '{"plugin": ["opencode-treesnap"]}',
            '{"plugin": "other"}',
        ),
    ],
)
def test_status_sees_a_package(snap, home, tmp_path, name, path, enabled, disabled):
    (home / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "bin/treesnap").symlink_to("snap")
    (home / path).write_text(enabled)

    (found,) = snap("agent", "status", name, "--json").json["hosts"]

    assert [hooks["path"] for hooks in found["hooks"]] == [str(home / path)]
    assert (found["hooks"][0]["program"], found["runs"]) == ("treesnap", None)
    assert found["problems"] == []
    (home / path).write_text(disabled)
    assert snap("agent", "status", name, "--json").json["hosts"][0]["hooks"] == []


OPENCODE_PACKAGE = Path(__file__).parents[3] / "integrations" / "opencode"


@pytest.mark.parametrize("settings", ["opencode.json", ".opencode/opencode.jsonc"])
@pytest.mark.parametrize(
    "plugin",
    [
        "file://{home}/my%20plugins/undo",
        "{home}/my plugins/undo/index.js",
        ["{home}/my plugins/undo", {"an": "option"}],
    ],
)
def test_status_knows_the_package_of_opencode_wherever_it_lies(snap, home, root, plugin, settings):
    shutil.copytree(OPENCODE_PACKAGE, home / "my plugins/undo")
    path = root / settings
    path.parent.mkdir(exist_ok=True)
    named = json.dumps({"plugin": ["another", plugin]}).replace("{home}", str(home))
    path.write_text(f"{named} // a comment")

    (found,) = snap("agent", "status", "opencode", "--json").json["hosts"]

    assert [(hooks["path"], hooks["for_project"]) for hooks in found["hooks"]] == [
        (str(path), True)
    ]


def test_the_plugin_of_another_is_not_ours_because_of_its_path(snap, home):
    shutil.copytree(OPENCODE_PACKAGE, home / "treesnap/other")
    (home / "treesnap/other/package.json").write_text('{"name": "other"}')
    path = home / ".config/opencode/opencode.json"
    path.parent.mkdir(parents=True)
    plugins = ["./plugins/treesnap", str(home / "treesnap/other"), 5, []]
    path.write_text(json.dumps({"plugin": plugins}))

    assert snap("agent", "status", "opencode", "--json").json["hosts"][0]["hooks"] == []


@pytest.mark.parametrize(
    ("name", "settings", "off"),
    [
        ("claude", {".claude/settings.json": {"disableAllHooks": True}}, "disableAllHooks"),
        ("gemini", {".gemini/settings.json": {"hooksConfig": {"enabled": False}}}, "enabled"),
        ("gemini", {".gemini/settings.json": {"hooks": {"disabled": ["treesnap"]}}}, "disabled"),
        ("copilot", {".copilot/config.json": {"disableAllHooks": True}}, "disableAllHooks"),
        ("copilot", {".copilot/hooks/treesnap.json": {"disableAllHooks": True}}, "All"),
    ],
)
def test_status_finds_the_switch_that_is_off(snap, home, name, settings, off):
    host(home, name, "echo 9.9")
    for path, value in settings.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(json.dumps(value))
    snap("agent", "install", name)

    (found,) = snap("agent", "status", name, "--json").json["hosts"]

    assert found["runs"] is False
    assert f"{home}/{next(iter(settings))} switches hooks off" in found["problems"][0]
    assert off in found["problems"][0]


def test_status_names_what_else_keeps_hooks_from_being_run(snap, home, tmp_path):
    host(home, "claude", "echo 2.1.197")
    snap("agent", "install", "claude", "cline", "--strict")
    (home / ".cline/hooks/TaskStart").unlink()
    (tmp_path / "bin/snap").unlink()
    (home / ".codex").mkdir()
    (home / ".codex/hooks.json").write_text("{")

    result = snap("agent", "status", "--json", env={"SNAP_DISABLE": "1"})

    found = {item["host"]: item for item in result.json["hosts"]}
    claude, cline = found["claude"], found["cline"]
    assert claude["runs"] is False
    assert [
        problem.partition(": ")[0].replace(str(tmp_path), "") for problem in claude["problems"]
    ] == [
        "/home/.claude/settings.json runs /bin/snap, which is not there",
        "SNAP_DISABLE is set",
    ]
    assert claude["hooks"][0]["is_strict"]
    assert [hooks["is_current"] for hooks in cline["hooks"]] == [False]
    assert "line 1, column 2" in found["codex"]["problems"][0]
    assert found["kiro"]["hooks"] == []


def test_a_setting_of_the_administrator_switches_hooks_off(snap, home, tmp_path, monkeypatch):
    managed = tmp_path / "managed.json"
    managed.write_text('{"allowManagedHooksOnly": true}')
    monkeypatch.setattr(status, "_MANAGED", {"claude": str(managed)})
    host(home, "claude", "echo 2.1.332")
    snap("agent", "install", "claude", "--project")

    (found,) = snap("agent", "status", "claude", "--json").json["hosts"]

    assert (found["runs"], found["hooks"][0]["for_project"]) == (False, True)
    assert found["problems"] == [f"{managed} switches hooks off: allowManagedHooksOnly"]


def test_a_host_that_hangs_keeps_no_other_from_telling_its_version(snap, home, monkeypatch):
    monkeypatch.setattr(status, "TIMEOUT_S", 0.2)
    host(home, "claude", "exec /bin/sleep 60")
    host(home, "gemini", "echo 0.61.0")

    found = snap("agent", "status", "claude", "gemini", "--json").json["hosts"]

    assert [item["version"] for item in found] == [None, "0.61.0"]


def test_status_shows_when_the_newest_event_came(snap, home, root):
    event = {"session_id": "s", "cwd": str(root), "hook_event_name": "Stop"}
    snap("hook", "claude", given=json.dumps(event).encode(), process=True)

    result = snap("agent", "status", "claude", "kiro", "--json")

    claude, kiro = result.json["hosts"]
    assert claude["last_event_ns"] == snap("list", "--json").json["snapshots"][0]["created_at_ns"]
    assert kiro["last_event_ns"] is None
    assert "  last event: 20" in snap("agent", "status", "claude").out


ANSWERS = r"""
while read -r line; do case "$line" in
*initialize\"*) echo '{"id": 1, "result": {}}' ;;
*hooks/list*) echo '{"id": 2, "result": {"data": [{"hooks": [HOOK]}]}}' ;;
esac; done
"""


@pytest.mark.parametrize(
    ("hook", "runs"),
    [
        ({"trustStatus": "trusted", "enabled": True}, True),
        ({"trustStatus": "managed"}, True),
        ({"trustStatus": "untrusted", "enabled": True}, False),
        ({"trustStatus": "modified", "enabled": True}, False),
        ({"trustStatus": "trusted", "enabled": False}, False),
        ({"trustStatus": "trusted", "command": "theirs"}, False),
    ],
)
def test_codex_is_asked_whether_it_trusts_the_hooks(snap, home, hook, runs):
    answer = json.dumps({"command": "/a/snap hook codex", **hook})
    host(
        home,
        "codex",
        '[ "$1" = --version ] && { echo 0.171; exit; }',
        ANSWERS.replace("HOOK", answer),
    )
    assert "type /hooks" in snap("agent", "install", "codex").err

    (found,) = snap("agent", "status", "codex", "--json").json["hosts"]

    assert (found["version"], found["runs"]) == ("0.171", runs)
    assert bool(found["problems"]) is not runs


def test_codex_may_list_hooks_that_are_not_understood(snap, home):
    host(home, "codex", ANSWERS.replace("HOOK", '"theirs", {"command": 7}'))
    snap("agent", "install", "codex")

    (found,) = snap("agent", "status", "codex", "--json").json["hosts"]

    assert found["runs"] is False


def test_a_host_that_reads_its_input_first_tells_its_version(snap, home):
    host(home, "codex", "read -r line\necho 1.2.3")
    snap("agent", "install", "codex")

    (found,) = snap("agent", "status", "codex", "--json").json["hosts"]

    assert found["version"] == "1.2.3"


@pytest.mark.parametrize("line", ["['snap', 'hook']", "[1]"])
def test_a_plugin_that_was_edited_is_none_of_ours(snap, home, line):
    snap("agent", "install", "opencode")
    path = home / ".config/opencode/plugins/treesnap.js"
    path.write_text(re.sub(r"const LINE = .*", f"const LINE = {line}", path.read_text()))

    (found,) = snap("agent", "status", "opencode", "--json").json["hosts"]

    assert found["hooks"] == []


@pytest.mark.sampled(5)
@pytest.mark.parametrize("server", ["exec /bin/sleep 60", "exit 1", "echo nonsense", "echo '{}'"])
def test_a_codex_that_does_not_answer_is_unknown(snap, home, monkeypatch, server):
    monkeypatch.setattr(status, "TIMEOUT_S", 0.2)
    host(home, "codex", server)
    snap("agent", "install", "codex")

    (found,) = snap("agent", "status", "codex", "--json").json["hosts"]

    assert (found["version"], found["runs"]) == (None, None)
    assert found["problems"] == ["Codex did not say whether it trusts the hooks"]


@pytest.fixture
def without_script(home, tmp_path, monkeypatch):
    """Makes this process one of an installation without a script, as a module."""
    packaged = tmp_path / "site/treesnap-1.dist-info"
    packaged.mkdir(parents=True)
    (packaged / "METADATA").write_text("Metadata-Version: 2.1\nName: treesnap\nVersion: 1\n")
    monkeypatch.syspath_prepend(str(packaged.parent))
    monkeypatch.setattr(sys, "argv", ["/somewhere/treesnap/__main__.py"])


def test_a_program_without_its_script_is_called_as_a_module(
    snap, home, monkeypatch, without_script
):
    monkeypatch.setattr(sys, "executable", "/opt/bin/python3")

    snap("agent", "install", "windsurf")

    assert (
        "/opt/bin/python3 -P -m treesnap hook windsurf"
        in (home / ".codeium/windsurf/hooks.json").read_text()
    )
    assert snap("agent", "status", "windsurf", "--json").json["hosts"][0]["hooks"][0]["is_current"]


def test_a_hook_runs_nothing_of_the_project_that_the_host_is_in(
    snap, home, tmp_path, without_script
):
    snap("agent", "install", "claude")
    (line,) = {
        entry["command"]
        for event, groups in json.loads((home / ".claude/settings.json").read_text())[
            "hooks"
        ].items()
        if event == "SessionStart"
        for group in groups
        for entry in group["hooks"]
    }
    project = tmp_path / "project"
    for name in ("treesnap/__init__.py", "click.py"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("open('run', 'w')")
    event = {"hook_event_name": "SessionStart", "session_id": "s", "cwd": str(project)}

    subprocess.run(["sh", "-c", line], input=json.dumps(event).encode(), cwd=project, check=True)

    assert not (project / "run").exists()


def test_hooks_that_look_for_modules_in_the_project_are_out_of_date(snap, home, without_script):
    settings = home / ".codeium/windsurf/hooks.json"
    snap("agent", "install", "windsurf")
    settings.write_text(settings.read_text().replace(" -P -m ", " -m "))

    found = snap("agent", "status", "windsurf", "--json").json["hosts"][0]

    assert not found["hooks"][0]["is_current"]
    assert f"{settings} is not what this version installs" in found["problems"]
    snap("agent", "install", "windsurf")
    assert settings.read_text().count(" -P -m ") == settings.read_text().count("treesnap hook ")


CALLER = """
const { Treesnap } = await import(process.argv[2])
const client = { tui: { showToast: async ({ body }) => console.log(body.variant, body.message) } }
const hooks = await Treesnap({ client, directory: process.cwd() })
const parts = [{ type: "text", text: "fix it" }]
await hooks["chat.message"]({ sessionID: "s", messageID: "m" }, { parts })
console.log(parts[0].text)
await hooks.event({ event: { type: "session.idle", properties: { sessionID: "s" } } })
await hooks.event({ event: { type: "file.edited", properties: {} } })
const call = { sessionID: "s", callID: "c", tool: "bash" }
const asked = hooks["tool.execute.before"](call, { args: { command: "rm" } })
await asked.catch((error) => console.log(error.message))
const info = { id: "of an agent", parentID: "s" }
await hooks.event({ event: { type: "session.created", properties: { info } } })
const prompt = { sessionID: info.id, messageID: "n" }
await hooks["chat.message"](prompt, { parts: [{ type: "text", text: "from the model" }] })
const inner = { ...call, sessionID: info.id, callID: "d" }
await hooks["tool.execute.before"](inner, { args: { command: "make" } })
"""

WARNED = "warning full"


@pytest.mark.sampled(5)
@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.parametrize(
    ("ends", "is_strict", "said"),
    [
        ('echo \'{"context": "look"}\'', False, ["fix it\n\nlook"]),
        ('echo \'{"warning": "full"}\'', False, [WARNED, "fix it", WARNED, WARNED, WARNED]),
        ("case $given in *rm*) echo no >&2; exit 2 ;; esac", True, ["fix it", "no"]),
        (None, False, ["fix it"]),
        (None, True, []),
    ],
)
def test_the_plugin_of_opencode_tells_the_hook_and_does_as_it_says(
    tmp_path, root, ends, is_strict, said
):
    program = tmp_path / "snap"
    if ends is not None:
        program.write_text(f'#!/bin/sh\ngiven=$(cat); echo "$* $given" >> told\n{ends}\n')
        program.chmod(0o755)
    place = SettingsPlace(LocalFileSystem(), str(root), True, {}, str(tmp_path / "notes"), 1)
    (change,) = install(place, ["opencode"], [str(program)], is_strict=is_strict, dry_run=False)
    shutil.copy(change.path, tmp_path / "plugin.mjs")
    (tmp_path / "caller.mjs").write_text(CALLER)

    done = subprocess.run(
        ["node", tmp_path / "caller.mjs", tmp_path / "plugin.mjs"],
        cwd=root,
        capture_output=True,
        check=False,
        text=True,
    )

    if ends is None and is_strict:
        assert "could not be run" in done.stderr
        return
    assert done.stdout.strip() == "\n".join(said)
    if ends is not None:
        words = f"hook opencode{' --strict' if is_strict else ''} "
        told = [
            json.loads(line.removeprefix(words))
            for line in (root / "told").read_text().splitlines()
        ]
        assert [item["event"] for item in told] == [
            "chat.message",
            "session.idle",
            "tool.execute.before",
            "tool.execute.before",  # but no prompt of the agent that was started
        ]
        assert {item["sessionID"] for item in told} == {"s"}
        assert told[0] | {"directory": ""} == {
            "event": "chat.message",
            "directory": "",
            "sessionID": "s",
            "messageID": "m",
            "prompt": "fix it",
        }
        assert told[2]["args"] == {"command": "rm"}
