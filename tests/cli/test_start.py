"""Starting, ending and describing the command itself."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import click
import pytest
from click.testing import CliRunner

import treesnap
from treesnap.cli import main
from treesnap.cli.command import SnapCommand
from treesnap.cli.group import LazyGroup
from treesnap.cli.invocation import Invocation

HEAVY = {"rich", "msgpack", "blake3", "zstandard", "pyfastcdc", "pathspec", "difflib", "json"}


def modules_after(words, environment, cwd):
    """Returns the modules that a call of the command line imports."""
    program = (
        "import sys; before = set(sys.modules); from treesnap.cli.main import execute; "
        f"execute({words!r}); print(*set(sys.modules) - before, file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, env=environment, cwd=cwd, check=True
    )
    return set(result.stderr.decode().splitlines()[-1].split())


def test_version_is_printed(snap):
    result = snap("--version")

    assert (0, f"treesnap {treesnap.__version__}\n") == (result.code, result.out)


@pytest.mark.parametrize("words", [["--version"], ["--help"]])
def test_start_imports_only_click_and_the_command_line(words, environment, root):
    modules = modules_after(words, environment, root)

    ours = {name for name in modules if name.startswith("treesnap.")}
    assert set() == modules & HEAVY
    assert {name for name in ours if not name.startswith("treesnap.cli")} == {"treesnap.errors"}
    assert [name for name in ours if ".cmd_" in name] == []


def test_list_does_not_import_what_it_does_not_use(snap, environment, root):
    snap("create")

    modules = modules_after(["list"], environment, root)

    assert set() == modules & {"rich", "pyfastcdc", "pathspec", "difflib", "subprocess"}


def commands_below(group, words=()):
    """Yields each command below a group: its words, the sentence in the table, itself."""
    for name, sentence in group.sentences.items():
        command = group.get_command(click.Context(group), name)
        if isinstance(command, LazyGroup):
            yield from commands_below(command, (*words, name))
        else:
            yield (*words, name), sentence, command


@pytest.mark.parametrize(
    ("words", "sentence"), [(words, sentence) for words, sentence, _ in commands_below(main.snap)]
)
def test_help_of_a_command_starts_as_the_table_says_and_ends_with_examples(snap, words, sentence):
    result = snap(*words, "--help")

    shown = " ".join(result.out.split())
    assert result.code == 0
    assert sentence in shown
    assert "--json" in shown
    assert re.search(rf"Examples: snap (-C \S+ |--store \S+ )?{' '.join(words)}\b", shown)


def test_every_example_of_the_help_is_accepted_by_the_parser():
    for names, _, command in commands_below(main.snap):
        assert isinstance(command, SnapCommand)
        for example in command.examples:
            words = [word.strip("'\"") for word in re.findall(r"'[^']*'|\"[^\"]*\"|\S+", example)]
            words = words[: words.index(">")] if ">" in words else words
            with main.snap.make_context("snap", words[1:], resilient_parsing=True):
                position = words.index(names[0]) + len(names) - 1
            assert words[position] == names[-1]
            with command.make_context(names[-1], words[position + 1 :]) as context:
                assert context.params is not None


@pytest.fixture
def group(tmp_path, monkeypatch):
    """A group with a command and another group, in a package of the test's own."""
    package = tmp_path / "lazy_commands"
    (package / "cmd_inner").mkdir(parents=True)
    (package / "__init__.py").touch()
    text = """
import click
from treesnap.cli.command import SnapCommand, pass_invocation
@click.command("outer", cls=SnapCommand, examples=["snap outer"])
@pass_invocation
def command(invocation):
    "Says how the output is."
    click.echo(f"json {invocation.output.as_json}")
"""
    (package / "cmd_outer.py").write_text(text)
    (package / "cmd_inner" / "cmd_leaf.py").write_text(text)
    (package / "cmd_inner" / "__init__.py").write_text(
        "from treesnap.cli.group import LazyGroup\n"
        "command = LazyGroup('inner', package=__name__, sentences={'leaf': 'Lies below.'})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield LazyGroup(
        "top", package="lazy_commands", sentences={"outer": "One word.", "inner": "Two words."}
    )
    for name in [name for name in sys.modules if name.startswith("lazy_commands")]:
        del sys.modules[name]


def run_group(group, *words):
    """Runs a group and returns its exit code, its output and the modules it imported."""
    result = CliRunner().invoke(group, words, obj=Invocation("top"))
    modules = {name for name in sys.modules if name.startswith("lazy_commands")}
    return result.exit_code, result.output, {name.partition(".")[2] for name in modules}


def test_group_imports_only_the_command_that_runs(group):
    assert run_group(group, "outer") == (0, "json False\n", {"", "cmd_outer"})


def test_group_in_a_group_passes_global_options_on(group):
    code, output, modules = run_group(group, "inner", "--json", "leaf")

    assert (code, output) == (0, "json True\n")
    assert modules == {"", "cmd_inner", "cmd_inner.cmd_leaf"}


def test_help_of_a_group_imports_none_of_its_commands(group):
    code, output, modules = run_group(group, "inner", "-h")

    assert code == 0
    assert re.search(r"leaf +Lies below", output)
    assert "--store DIR" in output
    assert modules == {"", "cmd_inner"}


def test_group_without_a_command_shows_its_help_and_is_a_usage_error(group):
    code, output, _ = run_group(group, "inner")

    assert code == 2
    assert "Lies below" in output


def test_group_refuses_a_command_that_it_does_not_have(group):
    code, output, _ = run_group(group, "inner", "nosuch")

    assert code == 2
    assert "No such command 'nosuch'" in output


def test_help_lists_every_command(snap):
    result = snap("--help")

    listed = re.findall(r"^  ([a-z]+)  ", result.out.split("Commands:")[1], re.MULTILINE)
    assert listed == list(main.COMMANDS)


def test_nothing_to_do_shows_the_help_and_is_a_usage_error(snap):
    result = snap()

    assert (result.code, result.out) == (2, "")
    assert "Commands:" in result.err


@pytest.mark.parametrize("program", ["snap", "treesnap"])
def test_completion_is_what_click_gives(program, environment, root):
    code = f"import sys; from treesnap.cli.main import main; sys.argv[0] = {program!r}; main()"

    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, f"_{program.upper()}_COMPLETE": "zsh_source"},
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )

    assert f"_{program.upper()}_COMPLETE=zsh_complete" in result.stdout


def test_completion_knows_the_commands(environment, root):
    code = "import sys; from treesnap.cli.main import main; sys.argv[0] = 'snap'; main()"
    request = {"_SNAP_COMPLETE": "zsh_complete", "COMP_WORDS": "snap sta", "COMP_CWORD": "1"}

    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, **request},
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )

    assert [word for word in result.stdout.split() if word in main.COMMANDS] == ["status", "stats"]


def test_module_runs_as_a_program(environment, root):
    result = subprocess.run(
        [sys.executable, "-m", "treesnap", "nosuch"],
        env=environment,
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 2
    assert result.stderr.startswith("treesnap: No such command 'nosuch'")


def test_exit_code_reaches_the_shell(snap):
    assert snap("show", "nosuch", process=True).code == 5


def test_interrupt_exits_130_without_a_traceback(environment, root):
    process = subprocess.Popen(
        [sys.executable, "-m", "treesnap", "run", "--", "sleep", "30"],
        env=environment,
        cwd=root,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    wait_for_child(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)

    assert process.returncode == 130
    assert b"Traceback" not in err


def wait_for_child(pid):
    """Returns when a process has started another one."""
    deadline = time.monotonic() + 30
    path = f"/proc/{pid}/task/{pid}/children"
    while time.monotonic() < deadline:
        with open(path, encoding="ascii") as file:
            if file.read().split():
                return
        time.sleep(0.01)
    pytest.fail("the command was never started")


def test_reader_that_goes_away_is_no_error_to_talk_about(root, environment):
    (root / "big").write_bytes(bytes(1_000_000))
    subprocess.run(
        [sys.executable, "-m", "treesnap", "create", "-q"], env=environment, cwd=root, check=True
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "treesnap", "cat", "latest", "big"],
        env=environment,
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr
    err = process.stderr.read()
    process.stderr.close()

    assert (process.wait(timeout=30), err) == (141, b"")


def test_output_that_cannot_be_written_is_an_error(root, environment, snap):
    snap("create")
    with open("/dev/full", "wb") as full:
        result = subprocess.run(
            [sys.executable, "-m", "treesnap", "list"],
            env=environment,
            cwd=root,
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )

    assert result.returncode == 1
    assert result.stderr == b"treesnap: No space left on device\n"


def test_closed_standard_output_is_no_error(root, environment):
    (root / "a").write_text("a")

    result = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m treesnap create >&-"],
        env=environment,
        cwd=root,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )

    assert result.returncode == 0, result.stderr


def test_error_that_cannot_be_written_keeps_its_exit_code(root, environment):
    with open("/dev/full", "wb") as full:
        result = subprocess.run(
            [sys.executable, "-m", "treesnap", "show", "nosuch", "--json"],
            env=environment,
            cwd=root,
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )

    assert (result.returncode, result.stderr) == (5, b"")


def test_closed_streams_do_not_give_their_numbers_to_files(root, environment):
    (root / "a").write_text("a")

    result = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m treesnap create <&- >&- 2>&-"],
        env=environment,
        cwd=root,
        check=False,
    )

    assert result.returncode == 0


def test_names_that_the_terminal_cannot_encode_are_escaped(root, environment, snap):
    (root / "naïve").write_text("a")
    snap("create")

    result = subprocess.run(
        [sys.executable, "-m", "treesnap", "ls", "latest"],
        env={**environment, "PYTHONIOENCODING": "ascii"},
        cwd=root,
        capture_output=True,
        check=False,
    )

    assert (result.returncode, result.stdout) == (0, b"na\\xefve\n")


def test_json_is_one_line_of_ascii(snap, root):
    (root / "naïve\n\x1b[31m").write_text("a")
    snap("create")

    result = snap("ls", "latest", "--json")

    assert result.raw.isascii()
    assert json.loads(result.raw)["entries"][0]["path"] == "naïve\n\x1b[31m"


def test_process_that_can_open_nothing_says_so(root, environment):
    """Then our own modules cannot be loaded either, those that describe errors among them."""
    program = """
import resource, sys
from treesnap.cli.main import execute
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
code = execute(["list"])
resource.setrlimit(resource.RLIMIT_NOFILE, limits)
sys.exit(code)
"""

    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=root, capture_output=True, check=False
    )

    assert (result.returncode, result.stdout) == (1, b"")
    assert result.stderr.startswith(b"snap: ")
    assert result.stderr.count(b"Too many open files") == 2
    assert result.stderr.count(b"\n") == 1


def test_closed_stream_gets_its_number_back_where_a_lower_one_is_free(root, environment):
    program = """
import os, sys
from treesnap.cli.main import execute
os.close(0)
code = execute(["create", "-q"])
sys.exit(code or os.readlink("/proc/self/fd/1") != os.devnull or os.path.exists("/proc/self/fd/0"))
"""

    result = subprocess.run(
        ["sh", "-c", 'exec "$0" -c "$1" >&-', sys.executable, program],
        env=environment,
        cwd=root,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )

    assert (result.returncode, result.stderr) == (0, b"")
