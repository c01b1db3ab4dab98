"""Hooks go into the settings of hosts, and come out again; all else in them stays."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sampling import evenly
from treesnap.agents.event import Event
from treesnap.agents.hosts.table import HOSTS, host_named
from treesnap.agents.install import host_settings
from treesnap.agents.install.host_settings import CONTRACTS, Form, caller_in, entries, hook_line
from treesnap.agents.install.installer import SettingsPlace, install, own_lines, uninstall
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.model.errors import (
    Conflict,
    ErrorCode,
    InvalidArgument,
    NotFound,
    OperationFailed,
    Refused,
    StorageFull,
)
from treesnap.core.ops.history.steps import EventPhase
from treesnap.testing.doubles import (
    Call,
    FaultyFileSystem,
    Killed,
    UnsyncedFileSystem,
    WrappedFileSystem,
    error_at,
    kill_at,
)

pytestmark = pytest.mark.sampled(2)

WORDS = ["/opt/with space/snap"]
SHARED = [host for host in HOSTS if CONTRACTS[host].form not in (Form.PLUGIN, Form.SCRIPTS)]
WHOLE = [host for host in HOSTS if host not in SHARED]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "home"
    path.mkdir()
    return path


@pytest.fixture
def place(tmp_path: Path, home: Path) -> SettingsPlace:
    notes = str(tmp_path / "state" / "treesnap")
    return SettingsPlace(LocalFileSystem(), str(home), False, {}, notes, 30)


def put_in(place: SettingsPlace, *hosts: str, words=WORDS, strict=False, dry_run=False):
    return install(place, hosts, words, is_strict=strict, dry_run=dry_run)


def take_out(place: SettingsPlace, *hosts: str, dry_run=False):
    return uninstall(place, hosts, dry_run=dry_run)


def tree(path: Path) -> dict[str, tuple[int, bytes | None]]:
    return {
        str(item.relative_to(path)): (
            item.lstat().st_mode,
            item.read_bytes() if item.is_file() else None,
        )
        for item in path.rglob("*")
    }


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("for_project", [False, True])
def test_an_empty_home_is_empty_again(place, home, host, for_project):
    place = place._replace(for_project=for_project)
    put_in(place, host)
    installed = tree(home)
    put_in(place, host)

    assert tree(home) == installed
    assert installed
    take_out(place, host)
    assert tree(home) == {}


@pytest.mark.parametrize("host", HOSTS)
def test_each_line_calls_the_hook_with_what_the_host_needs(place, home, host):
    put_in(place, host)

    contents = [content for _, content in tree(home).values() if content]
    line = hook_line(host, WORDS, CONTRACTS[host].events[0], is_strict=False)
    if host in SHARED:
        lines = [line for _, line in own_lines(json.loads(contents[0]), host)]
        assert len(lines) == len(CONTRACTS[host].events)
        assert {tuple(caller_in(line, host) or ()) for line in lines} == {tuple(WORDS)}
    elif host == "cline":
        assert len(contents) == len(CONTRACTS[host].events)
        assert line.encode() in b"\n".join(contents)
    else:
        assert json.dumps([*WORDS, "hook", host]).encode() in contents[0]


@pytest.mark.parametrize("host", HOSTS)
def test_the_events_are_those_that_the_hook_understands(host):
    names = {name.lower(): phase for name, phase in host_named(host).phases.items()}

    phases = {names[event.lower()] for event in CONTRACTS[host].events}

    assert {EventPhase.TURN, EventPhase.PRE, EventPhase.END} <= phases


BEFORE = {
    "nothing": "{}",
    "blanks": " \n",
    "compact": '{"hooks":{"Other":[]},"b":[1]}',
    "tabs, no newline at the end": '{\n\t"z": 1,\n\t"a": {\n\t\t"b": "ü"\n\t}\n}',
    "comments": '// mine\n{\n  "a": 1, // one\n  /* two */ "b": [1, 2,], // last\n}\n// end\n',
    "crlf and a mark": '\ufeff{\r\n    "a": 1\r\n}\r\n',
    "empty hooks": '{\n  "hooks": {\n  }\n}\n',
    "old version": '{"version": 7, "x": null}\n',
}


@pytest.mark.parametrize("host", SHARED)
@pytest.mark.parametrize("name", BEFORE)
def test_settings_get_their_bytes_back(place, home, host, name):
    before = BEFORE[name].encode()
    if host == "kiro":
        before = before.replace(b'{"Other":[]}', b"[]").replace(b"{\n  }", b"[]")
    path = Path(place.path(host))
    path.parent.mkdir(parents=True)
    path.write_bytes(before)
    path.chmod(0o640)
    at_first = tree(home)

    put_in(place, host)
    put_in(place, host, strict=True)
    put_in(place, host, words=["/moved/snap"])
    put_in(place, host, words=["/moved/snap"])

    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert b"with space" not in path.read_bytes()
    assert path.read_bytes().count(b"/moved/snap hook") == len(CONTRACTS[host].events)
    take_out(place, host)
    assert tree(home) == at_first


def grouped(*commands: str) -> dict:
    return {"hooks": [{"type": "command", "command": command} for command in commands]}


def test_hooks_of_others_stay_when_another_program_changed_the_file(place, home):
    path = home / ".claude/settings.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"hooks": {"Stop": [grouped("theirs")], "PreToolUse": []}}))
    put_in(place, "claude")
    changed = json.loads(path.read_text())
    changed["model"] = "opus"
    changed["hooks"]["PreToolUse"].append(grouped("also theirs"))
    changed["hooks"]["SessionStart"][0]["hooks"].append({"command": "beside ours"})
    path.write_text(json.dumps(changed, indent=4))

    take_out(place, "claude")

    assert json.loads(path.read_text()) == {
        "model": "opus",
        "hooks": {
            "Stop": [grouped("theirs")],
            "PreToolUse": [grouped("also theirs")],
            "SessionStart": [{"hooks": [{"command": "beside ours"}]}],
        },
    }


@pytest.mark.parametrize("host", SHARED)
def test_a_file_that_was_only_written_anew_goes_with_its_hooks(place, home, host):
    put_in(place, host)
    path = Path(place.path(host))
    path.write_text(json.dumps(json.loads(path.read_text()), indent=7))
    as_rewritten = path.read_bytes()

    put_in(place, host)  # what is there is right

    assert path.read_bytes() == as_rewritten
    put_in(place, host, words=["/moved/snap"])
    take_out(place, host)
    assert tree(home) == {}


def test_without_the_notes_nothing_of_ours_is_left(place, home):
    for host in SHARED:
        path = Path(place.path(host))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{\n  "theirs": 1\n}\n')
    put_in(place, *SHARED)
    (Path(place.notes_directory) / "installed.json").write_text("{damaged")

    take_out(place, *SHARED)

    left = {host: json.loads(Path(place.path(host)).read_text()) for host in SHARED}
    assert all(value.pop("version", 1) in (1, "v1") for value in left.values())
    assert left == {host: {"theirs": 1} for host in SHARED}


def test_a_note_of_a_later_version_keeps_the_others(place, home):
    put_in(place, "gemini", "codex")
    path = Path(place.notes_directory) / "installed.json"
    notes = json.loads(path.read_text())
    next(iter(notes.values()))["later"] = 1
    path.write_text(json.dumps({**notes, "/other": ["later"]}))

    put_in(place, "claude")
    take_out(place, "claude", "gemini", "codex")

    assert tree(home) == {}


class UnreadableNotes(WrappedFileSystem):
    """The record of installed hooks cannot be read."""

    def around(self, call: Call) -> Any:
        if call.method == "open" and call.path.endswith("/installed.json"):
            raise OSError(errno.EIO, "an error of the disk", call.path)
        return call.proceed()


def test_notes_that_cannot_be_read_are_not_overwritten(place, home):
    put_in(place, "gemini")

    with pytest.raises(OperationFailed, match="record of installed hooks"):
        put_in(place._replace(fs=UnreadableNotes()), "claude")

    take_out(place, "gemini")
    assert tree(home) == {}


def test_lines_of_older_versions_are_replaced_wherever_they_are(place, home):
    path = home / ".claude/settings.json"
    path.parent.mkdir()
    old = [
        "snap hook claude",
        "/x/python3 -m treesnap hook claude --strict",
        "/x/python3 -P -m treesnap hook claude",
        "treesnap hook claude x",
    ]
    kept = ["snap create", "snap hook codex", "echo snap hook claude", "snap 'hook claude"]
    path.write_text(
        json.dumps({"hooks": {"PreToolUse": [grouped(*old, *kept)], "Odd": [grouped(*old)]}})
    )

    put_in(place, "claude")

    value = json.loads(path.read_text())
    assert value["hooks"]["PreToolUse"][0] == grouped(*kept)
    assert [caller_in(line, "claude") for _, line in own_lines(value, "claude")] == [WORDS] * 7
    assert "Odd" not in value["hooks"]


STRICT = hook_line("claude", WORDS, "PreToolUse", is_strict=True)


@pytest.mark.parametrize(
    "line",
    [
        "snap hook claude && policy",
        "snap hook claude --strict;policy",
        "snap hook claude | tee log",
        "snap hook claude\npolicy",
        "policy; snap hook claude",
        "timeout -s KILL 25",
        "timeout -s KILL 25 snap hook claude && policy",
        f"{STRICT} && policy",
    ],
)
def test_a_line_of_the_user_stays_whatever_it_runs_beside_the_hook(place, home, line):
    path = home / ".claude/settings.json"
    path.parent.mkdir()
    before = {"hooks": {"PreToolUse": [grouped(line)]}}
    path.write_text(json.dumps(before))

    put_in(place, "claude")
    assert grouped(line) in json.loads(path.read_text())["hooks"]["PreToolUse"]
    take_out(place, "claude")

    assert json.loads(path.read_text()) == before


@pytest.mark.parametrize(
    ("host", "member"), [("claude", {"onFailure": "block"}), ("cursor", {"failClosed": True})]
)
def test_a_strict_host_blocks_where_no_hook_runs(host, member):
    for entry in entries(host, WORDS, is_strict=True):
        ours = entry.value["hooks"][0] if "hooks" in entry.value else entry.value
        is_blocked = host_named(host).phases[entry.path[-1]] in (EventPhase.TURN, EventPhase.PRE)
        assert (ours.items() >= member.items()) == is_blocked  # of others it has no effect
        assert " --strict" in ours["command"]


@pytest.mark.parametrize(
    ("host", "event"), [("cline", "TaskStart"), ("cline", "UserPromptSubmit"), ("kiro", "Stop")]
)
def test_a_strict_line_lets_go_on_what_the_host_lets_nothing_stop(tmp_path, host, event):
    line = hook_line(host, [broken(tmp_path, "exit 1")], event, is_strict=True)

    done = subprocess.run(["sh", "-c", line], capture_output=True, check=False, text=True)

    assert done.returncode != 2
    assert "true" not in done.stdout


def test_a_strict_prompt_of_kiro_is_captured_and_not_blocked():
    line = hook_line("kiro", WORDS, "UserPromptSubmit", is_strict=True)

    assert line.endswith("hook kiro userPromptSubmit --strict")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b'{"a": 1,\n "a": 2}', "line 2, column 2: the key 'a' is there twice"),
        (b'{"a": \xff}', "line 1, column 7: this is not UTF-8"),
        (b"[1]", "line 1, column 1: an object should be here"),
        (b'{"hooks": ' + b"[" * 100_000, "nested more than"),
        (b'{"hooks": []}', "'hooks' is not an object"),
        (b'{"hooks": {"Stop": {}}}', "'hooks.Stop' is not a list"),
    ],
)
def test_what_cannot_be_understood_is_not_touched(place, home, content, problem):
    path = home / ".claude/settings.json"
    path.parent.mkdir()
    path.write_bytes(content)
    before = tree(home)

    with pytest.raises(InvalidArgument, match=problem):
        put_in(place, "gemini", "claude")

    assert tree(home) == before


def directory(path: Path) -> None:
    path.mkdir()


def huge(path: Path) -> None:
    path.write_bytes(b" " * (1 << 20) + b"{}")


def read_only(path: Path) -> None:
    path.write_text("{}")
    path.chmod(0o444)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def lost_link(path: Path) -> None:
    path.symlink_to("nowhere")


def loop(path: Path) -> None:
    path.symlink_to(path)


def hard_link(path: Path) -> None:
    path.write_text("{}")
    (path.parent / "other").hardlink_to(path)


def file_above(path: Path) -> None:
    path.parent.rmdir()
    path.parent.write_text("")


def lost_link_above(path: Path) -> None:
    path.parent.rmdir()
    path.parent.symlink_to("nowhere")


@pytest.mark.parametrize(
    "spoil",
    [directory, huge, read_only, pipe, lost_link, loop, hard_link, file_above, lost_link_above],
)
@pytest.mark.parametrize("host", ["claude", "opencode"])
def test_what_cannot_be_replaced_is_not_touched(place, home, host, spoil):
    path = Path(place.path(host))
    path.parent.mkdir(parents=True)
    spoil(path)
    before = tree(home)

    with pytest.raises(OperationFailed):
        put_in(place, "gemini", host)

    assert tree(home) == before


def test_a_home_that_is_not_there_is_not_made(place, home):
    home.rmdir()

    with pytest.raises(NotFound, match="no directory"):
        put_in(place, "claude")

    assert not home.exists()


def test_a_link_is_written_through(place, home, tmp_path):
    real = tmp_path / "dotfiles" / "claude.json"
    real.parent.mkdir()
    real.write_text("{}")
    (home / ".claude").mkdir()
    (home / ".claude/settings.json").symlink_to("../../dotfiles/claude.json")

    put_in(place, "claude")

    assert (home / ".claude/settings.json").is_symlink()
    assert len(list(own_lines(json.loads(real.read_text()), "claude"))) == 7
    take_out(place, "claude")
    assert real.read_text() == "{}"


@pytest.fixture
def project(place, tmp_path) -> SettingsPlace:
    """A project of this user, and beside it a directory that is no part of it."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "project").mkdir()
    return place._replace(directory=str(tmp_path / "project"), for_project=True)


@pytest.mark.parametrize("link", [".claude", ".claude/settings.local.json"])
@pytest.mark.parametrize("change", [put_in, take_out])
@pytest.mark.parametrize("dry_run", [False, True])
def test_no_link_leads_out_of_a_project(project, tmp_path, link, change, dry_run):
    settings = tmp_path / "elsewhere/settings.local.json"
    settings.write_text(json.dumps({"hooks": {"Stop": [grouped("snap hook claude")]}}))
    path = tmp_path / "project" / link
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(settings if link.endswith("json") else settings.parent)
    before = [tree(tmp_path / name) for name in ("project", "elsewhere")]

    with pytest.raises(OperationFailed, match="leads out of the project") as caught:
        change(project, "claude", dry_run=dry_run)

    assert str(settings) in caught.value.message
    assert [tree(tmp_path / name) for name in ("project", "elsewhere")] == before


def test_a_link_within_a_project_is_written_through(project, tmp_path):
    (tmp_path / "project/for agents").mkdir()
    (tmp_path / "project/.claude").symlink_to("for agents")
    link = tmp_path / "link"
    link.symlink_to("project")
    project = project._replace(directory=str(link))

    put_in(project, "claude")

    assert os.listdir(tmp_path / "project/for agents") == ["settings.local.json"]
    take_out(project, "claude")
    assert os.listdir(tmp_path / "project/for agents") == []


@pytest.mark.parametrize("change", [put_in, take_out])
def test_a_directory_that_is_replaced_by_a_link_meanwhile_is_not_written_to(
    project, tmp_path, change
):
    inside, outside = tmp_path / "project/.claude", tmp_path / "elsewhere"
    inside.mkdir()
    (inside / "settings.local.json").write_text("{}")
    if change is take_out:
        put_in(project, "claude")
    shutil.copytree(inside, outside, dirs_exist_ok=True)
    before = tree(outside)

    class Meddling(LocalFileSystem):
        def __init__(self):
            self.has_begun = False

        def open(self, path, flags, *values, **options):
            if flags & os.O_CREAT and "lock" in str(path):  # all was looked at by then
                self.has_begun = True
            return super().open(path, flags, *values, **options)

        def lstat(self, path, **options):
            found = super().lstat(path, **options)
            if self.has_begun and str(path).endswith("settings.local.json") and inside.is_dir():
                inside.rename(tmp_path / "project/aside")
                inside.symlink_to(outside)
                self.has_begun = False
            return found

    with pytest.raises(OperationFailed):
        change(project._replace(fs=Meddling()), "claude")

    assert tree(outside) == before


ONLY_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@ONLY_ROOT
@pytest.mark.parametrize("which", ["link", "directory", "home"])
@pytest.mark.parametrize("change", [put_in, take_out])
def test_root_writes_nowhere_where_another_user_says_so(
    place, home, tmp_path, monkeypatch, which, change
):
    settings = tmp_path / "mine/settings.json"
    settings.parent.mkdir()
    settings.write_text(json.dumps({"hooks": {"Stop": [grouped("snap hook claude")]}}))
    monkeypatch.delenv("SNAP_SAFE_DIRECTORIES", raising=False)
    if which == "link":
        (home / ".claude").symlink_to(settings.parent)
        os.lchown(home / ".claude", 1234, 1235)
    else:
        settings.parent.rename(home / ".claude")
        os.chown(home / ".claude" if which == "directory" else home, 1234, 1235)
    before = tree(home), settings.exists() and settings.read_bytes()

    with pytest.raises(Refused) as caught:
        change(place, "claude")

    assert caught.value.code == ErrorCode.FOREIGN_OWNER
    assert (tree(home), settings.exists() and settings.read_bytes()) == before
    monkeypatch.setenv("SNAP_SAFE_DIRECTORIES", str(tmp_path))
    change(place, "claude")


@ONLY_ROOT
def test_a_file_keeps_its_owner(place, home, monkeypatch):
    monkeypatch.setenv("SNAP_SAFE_DIRECTORIES", str(home))
    os.chown(home, 1234, 1235)
    put_in(place, "codex")
    (home / ".claude").mkdir()
    path = home / ".claude/settings.json"
    path.write_text("{}")
    os.chown(path, 2345, 2346)

    put_in(place, "claude")

    owners = [((status := item.stat()).st_uid, status.st_gid) for item in (path, home / ".codex")]
    assert owners == [(2345, 2346), (1234, 1235)]


def test_a_change_of_another_program_in_between_is_kept(place, home):
    path = home / ".claude/settings.json"
    path.parent.mkdir()
    path.write_text("{}")

    class Meddling(LocalFileSystem):
        def change_mode(self, fd, mode):
            path.write_text('{"theirs": 1}')
            super().change_mode(fd, mode)

    with pytest.raises(Conflict, match="at the same time"):
        put_in(place._replace(fs=Meddling()), "claude")

    assert path.read_text() == '{"theirs": 1}'
    assert os.listdir(path.parent) == ["settings.json"]


def test_installs_at_once_do_not_lose_each_other(place, home):
    threads = [threading.Thread(target=put_in, args=(place, host)) for host in HOSTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    take_out(place, *HOSTS)

    assert tree(home) == {}


KILLED = "killed before a call that changes the disk"
FULL = "a call fails because the disk is full"


@pytest.mark.sampled(5)
@pytest.mark.parametrize("how", [KILLED, FULL])
@pytest.mark.parametrize("undoes", [False, True], ids=["install", "uninstall"])
def test_what_is_interrupted_leaves_whole_files_and_can_be_undone(
    place, home, tmp_path, how, undoes
):
    hosts = ("claude", "vscode")  # a file that is there, and one that is not

    def begin() -> None:
        shutil.rmtree(home)
        shutil.rmtree(place.notes_directory, ignore_errors=True)
        (home / ".claude").mkdir(parents=True)
        (home / ".claude/settings.json").write_text('{"a": 1}')
        if undoes:
            put_in(place, *hosts)

    def change(at: SettingsPlace) -> None:
        take_out(at, *hosts) if undoes else put_in(at, *hosts)

    begin()
    before = tree(home)
    fault = kill_at(10_000) if how == KILLED else error_at(10_000, errno.ENOSPC)
    change(place._replace(fs=(counting := FaultyFileSystem(fault, inner=UnsyncedFileSystem()))))
    after = tree(home)

    for number in evenly(counting.seen_of(fault), 12):
        begin()
        fault = kill_at(number) if how == KILLED else error_at(number, errno.ENOSPC)
        fs = FaultyFileSystem(fault, inner=UnsyncedFileSystem())
        with suppress(Killed, StorageFull, OperationFailed):
            change(place._replace(fs=fs))

        left = {name: item for name, item in tree(home).items() if item[1] is not None}
        temporary = {name for name in left if name not in before and name not in after}
        assert how == KILLED or not temporary
        assert all(
            left[name] in (before.get(name), after.get(name)) for name in {*left} - temporary
        )
        for name in temporary:
            (home / name).unlink()
        take_out(place, *hosts)
        assert (home / ".claude/settings.json").read_text() == '{"a": 1}'
        files = [path for path, (_, content) in tree(home).items() if content is not None]
        assert files == [".claude/settings.json"]
        assert how == KILLED or not (home / ".copilot").exists()


def test_a_dry_run_changes_nothing_and_says_what_would_be(place, home, tmp_path):
    before = tree(tmp_path)
    planned = put_in(place, *HOSTS, dry_run=True)

    assert tree(tmp_path) == before
    assert planned == put_in(place, *HOSTS)
    assert {item.path: item.new for item in planned} == {
        str(home / path): content for path, (_, content) in tree(home).items() if content
    }
    installed = tree(home)
    removals = take_out(place, *HOSTS, dry_run=True)
    assert tree(home) == installed
    assert removals == take_out(place, *HOSTS)
    assert all(item.new is None for item in removals)


@pytest.mark.parametrize("host", WHOLE)
def test_a_program_of_the_user_in_the_place_is_not_touched(place, home, host):
    path = Path(place.path(host))
    path = path / "PreToolUse" if host == "cline" else path
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\nexit 0\n")

    with pytest.raises(OperationFailed, match="was not made by treesnap"):
        put_in(place, host)
    take_out(place, host)

    assert path.read_text() == "#!/bin/sh\nexit 0\n"


@pytest.mark.parametrize("host", WHOLE)
def test_a_program_that_the_user_changed_is_not_removed(place, home, host):
    put_in(place, host)
    path = Path(place.path(host))
    path = path / "PreToolUse" if host == "cline" else path
    path.write_bytes(path.read_bytes() + b"more\n")

    with pytest.raises(OperationFailed, match="was changed"):
        take_out(place, host)

    assert path.exists()


BROKEN = {
    "missing": None,
    "killed": "kill -KILL $$",
    "suspended": "kill -STOP $$",
    "failed": "exit 1",
}


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("host", [*SHARED, "cline"])
def test_a_strict_line_blocks_whatever_becomes_of_the_program(tmp_path, monkeypatch, host, how):
    monkeypatch.setattr(host_settings, "_KILLER", ("timeout", "-s", "KILL", "0.05"))
    program = broken(tmp_path, BROKEN[how])
    phases = host_named(host).phases

    for event in CONTRACTS[host].events:
        phase = next(phase for name, phase in phases.items() if name.lower() == event.lower())
        line = hook_line(host, [program], event, is_strict=True)
        assert caller_in(line, host) == [program]
        if phase in host_named(host).blocked_phases:
            done = subprocess.run(["sh", "-c", line], capture_output=True, check=False, text=True)
            expected = host_named(host).block(
                Event(host, phase, "/", "s"), host_settings._NO_SNAPSHOT
            )
            assert (done.returncode, done.stdout) == (expected.exit_code, expected.stdout)
            assert done.stderr.endswith(expected.stderr)


def broken(directory: Path, script: str | None) -> str:
    program = directory / "snap"
    if script is not None:
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize("how", BROKEN)
def test_a_script_lets_the_tool_go_on_whatever_becomes_of_the_program(
    place, home, tmp_path, monkeypatch, how
):
    monkeypatch.setattr(host_settings, "_KILLER", ("timeout", "-s", "KILL", "0.05"))
    put_in(place, "cline", words=[broken(tmp_path, BROKEN[how])])

    done = subprocess.run(
        [home / ".cline/hooks/PreToolUse"], input=b"{}", capture_output=True, check=True
    )

    assert json.loads(done.stdout) == {"cancel": False}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("host", ["gemini", "copilot"])
def test_hosts_that_any_failure_stops_are_told_to_go_on(tmp_path, monkeypatch, host, how):
    monkeypatch.setattr(host_settings, "_KILLER", ("timeout", "-s", "KILL", "0.05"))
    program = broken(tmp_path, BROKEN[how])

    for event in CONTRACTS[host].events:
        line = hook_line(host, [program], event, is_strict=False)
        done = subprocess.run(["sh", "-c", line], capture_output=True, check=True, text=True)
        assert done.stderr.endswith(f"{host_settings._WARNING}\n")
        if host == "gemini":
            assert json.loads(done.stdout) == {"systemMessage": host_settings._WARNING}


def test_a_script_runs_the_program_with_the_event(place, home, tmp_path):
    program = broken(tmp_path, 'echo "$@" && cat')
    put_in(place, "cline", words=[program, "--store", "/a b"])

    done = subprocess.run(
        [home / ".cline/hooks/TaskStart"], input=b"given", capture_output=True, check=True
    )

    assert done.stdout == b"--store /a b hook cline TaskStart\ngiven"


def test_lines_are_alike_where_nothing_blocks():
    lines = {
        hook_line("codex", WORDS, event, is_strict=False) for event in CONTRACTS["codex"].events
    }

    assert lines == {"'/opt/with space/snap' hook codex"}
    assert hook_line("claude", WORDS, "Stop", is_strict=True).endswith("hook claude --strict")


def test_variables_of_hosts_say_where_settings_are(place, home):
    environ = {"CLAUDE_CONFIG_DIR": "/c", "XDG_CONFIG_HOME": "/x", "CODEX_HOME": "relative"}
    place = place._replace(environ=environ)

    assert place.path("claude") == "/c/settings.json"
    assert place.path("opencode") == "/x/opencode/plugins/treesnap.js"
    assert place.path("codex") == f"{home}/.codex/hooks.json"
    assert place._replace(for_project=True).path("claude") == f"{home}/.claude/settings.local.json"
