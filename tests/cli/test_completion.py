"""Completion in shells: what is offered at which place, and the scripts in real shells."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from oracle import difference, record
from treesnap.cli.command import SnapGroup
from treesnap.cli.completion import SHELLS, LineCompletion, answer, script
from treesnap.cli.completion_values import ARGUMENTS, OPTIONS
from treesnap.cli.group import snap as command_line
from treesnap.cli.main import execute
from treesnap.core.ops.maintenance.config import KEYS

pytestmark = pytest.mark.sampled(3)

WORDBREAKS = " \t\n\"'@><=;|&(:"
DEADLINE_S = 30.0


@pytest.fixture
def ask(environment, root, monkeypatch):
    """Returns what is offered at the end of a line, as rows of type, word and meaning."""

    def ask(line: str, shell: str = "zsh", cwd: Path = root) -> list[tuple[str, ...]]:
        with monkeypatch.context() as patch:
            patch.chdir(cwd)
            for name, value in environment.items():
                patch.setenv(name, value)
            patch.setenv("COMP_LINE", line)
            patch.setenv("COMP_WORDBREAKS", WORDBREAKS)
            text = LineCompletion(command_line, "snap", shell).complete()
        return [tuple(row.split("\t")) for row in text.splitlines()]

    return ask


@pytest.fixture
def words(ask):
    """Returns the words that are offered at the end of a line."""
    return lambda *line, **options: [word for _, word, _ in ask(*line, **options)]


@pytest.fixture
def history(snap, root):
    """Three snapshots of a tree that lost a file; returns their short ids, oldest first."""
    (root / "src" / "deep dir").mkdir(parents=True)
    (root / "src" / "with space").write_text("b")
    (root / "src" / "gone").write_text("c")
    ids = [snap("-q", "create", "-m", "first", "--name", "v1").id]
    (root / "src" / "gone").unlink()
    ids.append(snap("-q", "create", "-m", "then", "--session", "build-7", "--step", 1).id)
    (root / "notes").touch()
    ids.append(snap("-q", "create", "-m", "last", "--tag", "release=1").id)
    snap("pin", "v1")
    return [identity[:12] for identity in ids]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("snap cre", ["create"]),
        ("snap plan ch", ["checkpoints", "checkpoint"]),
        ("snap -q --json sta", ["status", "stats"]),
        ("snap restore --d", ["--dry-run"]),
        ("snap check --rep", ["--repair"]),
        ("snap restore lat", ["latest"]),
        ("snap restore latest~", ["latest~1", "latest~2"]),
        ("snap show v", ["v1"]),
        ("snap find x --ref v", ["v1"]),
        ("snap restore --session ", ["build-7"]),
        ("snap restore --session b", ["build-7"]),
        ("snap restore --session=b", ["--session=build-7"]),
        ("snap show --session build-7 step", ["step:1"]),
        ("snap show step:", ["step:1"]),
        ("snap config keep.w", ["keep.within", "keep.weekly"]),
        ("snap config ", list(KEYS)),
        ("snap config automatic ", ["true", "false"]),
        ("snap config max-size ", []),
        ("snap cat latest no", ["notes"]),
        ("snap cat latest src/", ["src/deep dir/", "src/with space"]),
        ("snap cat v1 src/g", ["src/gone"]),
        ("snap restore v1 src/g", ["src/gone"]),
        ("snap diff v1 n", ["notes"]),
        ("snap remote snapshots ", []),
        ("snap create -m ", []),
        ("snap completion ", list(SHELLS)),
        ("snap agent install cl", ["claude", "cline"]),
    ],
)
def test_words_that_fit_are_offered(words, history, line, offered):
    assert words(line) == offered


def test_refs_are_latest_then_names_then_ids_each_with_time_and_label(ask, history):
    rows = ask("snap restore ")

    first, then, last = history
    assert [word for _, word, _ in rows] == ["latest", "v1", last, then, first]
    meanings = [meaning.split(" ", 2) for _, _, meaning in rows[2:]]
    assert [meaning[2] for meaning in meanings[:2]] == ["last release=1", "then (build-7 step 1)"]
    assert rows[4][2].startswith("pinned, ")
    assert rows[4][2].endswith(" [v1] first")


def test_beginning_of_an_id_finds_it(words, snap, root, history):
    assert words(f"snap show {history[0][:6]}") == [history[0]]
    assert words(f"snap show {history[0]}") != []


def test_unpin_offers_what_is_pinned(words, history):
    assert words("snap unpin ") == ["v1", history[0]]


def test_remotes_are_offered_and_a_new_name_is_not(words, snap, tmp_path, history):
    assert snap("remote", "add", "backup", tmp_path / "disk", "--no-encrypt").code == 0

    for line in ("push ", "remote show ", "remote snapshots ", "clone ", "pull b"):
        assert words(f"snap {line}") == ["backup"], line
    assert words("snap remote add ") == []


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("snap -C ", "dir"),
        ("snap list --store ", "dir"),
        ("snap restore latest --to ", "dir"),
        ("snap run -- make ", "file"),
        ("snap remote add x url --passphrase-file ", "file"),
    ],
)
def test_shells_complete_files_and_directories_themselves(ask, history, line, kind):
    assert [row[0] for row in ask(line)] == [kind]


def test_root_and_store_of_the_line_count(words, run_snap, tmp_path, root, store, history):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    assert words("snap show l", cwd=elsewhere) == []
    assert words(f"snap -C {root} show l", cwd=elsewhere) == ["latest"]
    assert words(f"snap show -C {root} --store {store} l", cwd=elsewhere) == ["latest"]
    assert words(f"snap --store {tmp_path} show l") == []


def test_words_in_bash_are_quoted_and_begin_where_bash_replaces(words, snap, history):
    snap("create", "--name", "two words")

    assert words("snap show tw", shell="bash") == ["two\\ words"]
    assert words("snap show 'tw", shell="bash") == ["two words"]
    assert words("snap show two\\ w", shell="bash") == ["two\\ words"]
    assert words("snap show step:", shell="bash") == ["1"]
    assert words("snap find x --ref=v", shell="bash") == ["v1"]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("", r"x\$\(id\)\`id\`\\\""),
        ('"', r"x\$(id)\`id\`\\\""),
        ("'", r"x$(id)`id`\""),
    ],
)
def test_name_is_no_command_in_bash_whatever_quotes_are_open(words, snap, root, typed, offered):
    name = r"x$(id)`id`\""
    (root / name).touch()
    snap("create", "--name", name)
    (root / name).unlink()

    assert words(f"snap show {typed}x", shell="bash") == [offered]
    assert words(f"snap cat latest {typed}x", shell="bash") == [offered]


def test_name_that_cannot_stand_between_the_quotes_is_not_offered(words, snap, root):
    (root / "file").touch()
    snap("create", "--name", "of bash's history!!")

    assert words('snap show "of', shell="bash") == []
    assert words("snap show 'of", shell="bash") == []
    assert words("snap show of", shell="bash") == [r"of\ bash\'s\ history\!\!"]


def test_name_that_could_act_on_a_terminal_is_not_offered(words, snap, root, history):
    (root / "bad\nname").touch()
    (root / "bad\tname").touch()

    assert words("snap cat latest bad") == []


def test_completion_changes_nothing(words, snap, root, store, history):
    before = record(store), record(root)

    for line in ("restore ", "restore v1 s", "show --session ", "config ", "delete "):
        words(f"snap {line}")

    assert difference(before[0], record(store)) == []
    assert difference(before[1], record(root)) == []


def test_completion_makes_no_store(words, store, root):
    assert words("snap restore ") == []
    assert not store.exists()


def test_errors_are_not_printed(environment, root, store, history, capfd, monkeypatch):
    for path in store.glob("snapshots/*/*"):
        path.write_bytes(b"damage")
    (store / "format").write_bytes(b"damage")
    monkeypatch.chdir(root)
    monkeypatch.setenv("SNAP_STORE", str(store))

    for line in ("snap restore ", "snap cat latest ", "snap 'open", "snap -C /nowhere show ", ""):
        monkeypatch.setenv("COMP_LINE", line)
        assert answer(command_line, "snap", "bash_complete") == 0

    assert capfd.readouterr().err == ""


def test_shell_that_is_not_known_is_an_error(capfd):
    assert answer(command_line, "snap", "tcsh_complete") == 1


def test_completion_imports_no_command_but_the_one_of_the_line(environment, root, snap, history):
    program = "from treesnap.cli.main import main; import sys, os; sys.argv[0] = 'snap'; "
    program += "os._exit = lambda _: print(*sys.modules, file=sys.stderr); main()"
    variables = {**environment, "_SNAP_COMPLETE": "bash_complete"}

    def loaded(line: str) -> set[str]:
        result = subprocess.run(
            [sys.executable, "-c", program],
            env={**variables, "COMP_LINE": line},
            cwd=root,
            capture_output=True,
            check=False,
        )
        return set(result.stderr.decode().splitlines()[0].split())

    commands = {name for name in loaded("snap ") if ".commands." in name}
    assert commands == set()
    modules = loaded("snap restore ")
    assert {name for name in modules if ".commands." in name} == {"treesnap.cli.commands.restore"}
    unused = {"rich", "pyfastcdc", "difflib", "subprocess", "json", "backports.zstd", "watchdog"}
    assert not modules & {*unused, "treesnap.core.worktree.scan.scanner", "treesnap.remote"}


def test_tables_name_parameters_that_exist():
    def parameters(group):
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            yield from (parameters(command) if isinstance(command, SnapGroup) else command.params)

    found = list(parameters(command_line))
    arguments = {item.name for item in found if isinstance(item, click.Argument)}
    options = {item.name for item in found if isinstance(item, click.Option)}
    assert set(ARGUMENTS) <= arguments
    assert set(OPTIONS) <= options


@pytest.mark.parametrize("shell", SHELLS)
def test_script_completes_both_names_of_the_command(snap, shell):
    result = snap("completion", shell, env={"PATH": "/nowhere"})

    assert result.code == 0
    assert "snap treesnap" in result.out
    assert "%(" not in result.out
    assert snap("completion", shell, "--json").json["script"].startswith("#")


def test_script_leaves_another_program_of_that_name_alone(
    tmp_path, environment, monkeypatch, capfd
):
    for directory, name in (("ours", "treesnap"), ("other", "snap")):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / name).write_text("#!/bin/sh\n")
        (tmp_path / directory / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/other:{tmp_path}/ours")

    assert execute(["completion", "bash"], "treesnap") == 0

    assert "-F _treesnap_complete treesnap\n" in capfd.readouterr().out


@pytest.fixture
def session(environment, root, tmp_path, history):
    """Types keys into a real shell and returns what its terminal shows once a text is there."""
    (tmp_path / "bin").mkdir()
    for name in ("snap", "treesnap"):
        start = f"#!{sys.executable} -P\nimport sys\nfrom treesnap.cli.main import main\nmain()\n"
        (tmp_path / "bin" / name).write_text(start)
        (tmp_path / "bin" / name).chmod(0o755)
    variables = environment | {
        "PATH": f"{tmp_path / 'bin'}:{environment['PATH']}",
        "TERM": "xterm",
        "ZDOTDIR": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }

    def run(command: list[str], typed: str, until: str) -> str:
        if shutil.which(command[0]) is None:
            pytest.skip(f"{command[0]} is not installed")
        process, terminal = pty.fork()
        if process == 0:
            os.chdir(root)
            os.execvpe(command[0], command, variables)
        shown = ""
        rest = [part.encode() for part in typed.split("|")]
        deadline = time.monotonic() + DEADLINE_S
        try:
            while until not in shown:
                assert time.monotonic() < deadline, shown
                if rest and "READY" in shown:
                    os.write(terminal, rest.pop(0))
                if not select.select([terminal], [], [], 1.0)[0]:
                    continue
                piece = os.read(terminal, 1 << 16).decode(errors="replace")
                shown += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", piece)
        finally:
            os.kill(process, 9)
            os.waitpid(process, 0)
            os.close(terminal)
        return shown

    return run


def test_bash_completes(session, tmp_path, history):
    start = 'PS1="READY> "\neval "$(snap completion bash)"\nbind "set bell-style none"\n'
    (tmp_path / "rc").write_text(start)
    bash = ["bash", "--noprofile", "--rcfile", str(tmp_path / "rc"), "-i"]

    assert "restore " in session(bash, "snap rest\t", "snap restore ")
    shown = session(bash, "treesnap show \t|\t", f"{history[0]}  (pinned")
    assert "latest" in shown
    assert "src/gone" in session(bash, "snap cat v1 src/g\t", "src/gone ")
    assert "step:1" in session(bash, "snap show --session build-7 st\t", "step:1")
    session(bash, "snap cat latest src/w\t", "src/with\\ space ")


def test_bash_runs_no_name_of_a_snapshot_or_file(session, tmp_path, root, snap):
    (root / "tick`id`").touch()
    snap("create", "--name", "name$(id)")
    (root / "tick`id`").unlink()
    (tmp_path / "rc").write_text('PS1="READY> "\neval "$(snap completion bash)"\n')
    bash = ["bash", "--noprofile", "--rcfile", str(tmp_path / "rc"), "-i"]

    session(bash, 'snap show "na\t', r'snap show "name\$(id)"')
    session(bash, "snap cat latest ti\t", r"snap cat latest tick\`id\` ")


def test_zsh_completes_without_compinit(session, tmp_path, history):
    (tmp_path / ".zshrc").write_text('PS1="READY> "\neval "$(snap completion zsh)"\n')

    session(["zsh", "-d", "-i"], "snap rest\t", "snap restore ")
    session(["zsh", "-d", "-i"], "treesnap show \t|\t", "pinned, ")
    session(["zsh", "-d", "-i"], "snap cat v1 src/g\t", "src/gone ")


def test_fish_completes_commas_and_forgets_what_another_program_completes(session, snap):
    snap("create", "--name", "a,b", "-m", "comma, too")
    start = "function fish_prompt; echo 'READY> '; end; snap completion fish | source"
    fish = ["fish", "--private", "-C"]

    session([*fish, f"{start}; echo (complete -C 'snap restore a')"], "", "a,b")
    shown = session([*fish, f"{start}; echo (complete -C 'treesnap show ')END"], "", "END")
    assert "comma, too" in shown
    begin = f"complete -c snap -a refresh; {start}; echo (complete -C 'snap re')END"
    shown = session([*fish, begin], "", "END")
    assert "refresh" not in shown
    assert "restore" in shown


def test_module_of_scripts_has_one_for_each_shell():
    assert all("_COMPLETE=" in script(shell, ["snap"]) for shell in SHELLS)
