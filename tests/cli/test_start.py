"""Starting, ending and describing the command itself."""

import os
import re
import signal
import subprocess
import sys
import time
from itertools import takewhile

import click
import pytest
from click.testing import CliRunner

import treesnap
from treesnap.cli.command import LazyGroup, SnapCommand, SnapGroup
from treesnap.cli.commands import COMMANDS
from treesnap.cli.group import snap as command_line
from treesnap.cli.invocation import Invocation
from treesnap.core.fs import native

pytestmark = pytest.mark.sampled(10)

HEAVY = {
    "backports.zstd",
    "compression.zstd",
    "rich",
    "msgpack",
    "blake3",
    "pyfastcdc",
    "difflib",
    "json",
}
BY_PYTHON = {"compression.zstd"} if sys.version_info >= (3, 14) else set()
"""What shutil imports."""
ALL_COMMANDS = [name for section in COMMANDS.values() for name in section]


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


@pytest.mark.usefixtures("implementation")
def test_the_verbose_version_and_doctor_say_how_directories_are_looked_at(snap, implementation):
    language = implementation.removeprefix("in ")
    snap("create")

    assert snap("--version", "-v").out.splitlines()[1:] == [f"looks at directories in {language}"]
    assert snap("doctor").out.splitlines()[-1] == f"Directories are looked at in {language}"
    assert snap("doctor", "--json").json["implementation"] == language


def test_the_module_in_c_is_left_alone_where_the_environment_says_so(snap, environment):
    environment["TREESNAP_PURE"] = "1"
    program = "from treesnap.core.fs import native; print(native.implementation())"

    shown = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, check=True
    )

    assert shown.stdout == b"Python\n"


@pytest.mark.parametrize("words", [["--version"], ["--help"]])
def test_start_imports_only_click_and_the_command_line(words, environment, root):
    modules = modules_after(words, environment, root)

    ours = {name for name in modules if name.startswith("treesnap.")}
    assert set() == (modules & HEAVY) - BY_PYTHON
    below = {"core", "core.features", "core.own_program"}
    below |= {"core.model", "core.model.errors", "core.model.named_tuple", "core.model.type_names"}
    below = {f"treesnap.{name}" for name in below}
    assert {name for name in ours if not name.startswith("treesnap.cli")} == below
    assert [name for name in ours if ".commands." in name or "completion" in name] == []


NEEDLESS = {"click", "concurrent.futures", "dataclasses", "difflib", "hashlib", "inspect"}
NEEDLESS |= {
    "json",
    "logging",
    "platformdirs",
    "pyfastcdc",
    "rich",
    "shlex",
    "socket",
    "subprocess",
}
NEEDLESS |= {"tempfile", "threading", "tomllib", "unicodedata"}
"""What no everyday command needs."""
ZSTD = {"backports.zstd", "compression.zstd"}
"""For commands that read or store content."""


@pytest.mark.parametrize("is_changed", [False, True])
@pytest.mark.parametrize(
    ("words", "own_max"),
    [
        ("status", 110),
        ("create -q", 122),
        ("list -n 3", 88),
        ("diff", 122),
        ("restore latest", 142),
        ("undo", 142),
    ],
)
def test_everyday_commands_import_little(words, own_max, is_changed, snap, environment, root):
    (root / "a").write_text("first")
    snap("create")
    snap("restore", "latest")
    (root / "a").write_text("second")
    snap("create")
    snap("restore", "latest~1")
    if is_changed:
        (root / "a").write_text("third")

    modules = modules_after(words.split(), environment, root)

    reads = is_changed or words in {"restore latest", "undo", "diff"}
    needless = NEEDLESS if native.module is None else NEEDLESS | {"ctypes"}
    assert set() == modules & (needless if reads else needless | ZSTD)
    ours = {name for name in modules if name.startswith("treesnap.")}
    assert len(ours) <= own_max, sorted(ours)


def test_records_of_everyday_commands_are_cheap_to_define(snap, environment, root):
    snap("create")
    program = (
        "import sys; from treesnap.cli.main import execute; "
        "[execute(words.split()) for words in ('create', 'status', 'list', 'restore latest')]; "
        "from treesnap.core.model.named_tuple import _Definition; "
        "found = {item for name, module in list(sys.modules.items()) "
        "if name.startswith('treesnap.') for item in vars(module).values() "
        "if hasattr(item, '_fields') and isinstance(item, type)}; "
        "print(len(found) > 50, {item for item in found if type(item) is not _Definition})"
    )

    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, env=environment, cwd=root, check=True
    )

    assert result.stdout.decode().splitlines()[-1] == "True set()"


def commands_below(group, words=()):
    """Yields each command below a group: its words, the sentence in the table, itself."""
    for _, section in group.sections():
        for name, sentence in section.items():
            command = group.get_command(click.Context(group), name)
            if isinstance(command, SnapGroup):
                yield from commands_below(command, (*words, name))
            else:
                yield (*words, name), sentence, command


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("words", "sentence"),
    [(words, sentence) for words, sentence, _ in commands_below(command_line)],
)
def test_help_of_a_command_starts_as_the_table_says_and_ends_with_examples(snap, words, sentence):
    result = snap(*words, "--help")

    shown = " ".join(result.out.split())
    assert result.code == 0
    assert sentence in shown
    assert "--json" in shown
    assert re.search(rf"Examples: snap (-C \S+ |--store \S+ )?{' '.join(words)}\b", shown)


def test_every_example_of_the_help_is_accepted_by_the_parser():
    for names, _, command in commands_below(command_line):
        assert isinstance(command, SnapCommand)
        for example in command.examples:
            words = [word.strip("'\"") for word in re.findall(r"'[^']*'|\"[^\"]*\"|\S+", example)]
            words = list(takewhile(lambda word: word not in {">", "|"}, words))
            with command_line.make_context("snap", words[1:], resilient_parsing=True):
                position = words.index(names[0]) + len(names) - 1
            assert words[position] == names[-1]
            with command.make_context(names[-1], words[position + 1 :]) as context:
                assert context.params is not None


@pytest.fixture
def group(tmp_path, monkeypatch):
    """A group of a command and another group, in a package of the test's own."""
    package = tmp_path / "lazy_commands"
    package.mkdir()
    (package / "__init__.py").touch()
    function = """
def {name}(invocation):
    "Says how the output is."
    click.echo(f"json {{invocation.output.as_json}}")
"""
    (package / "cmd_outer.py").write_text(
        "import click\n"
        "from treesnap.cli.command import command, pass_invocation\n"
        "@command('outer', examples=['top outer'])\n"
        "@pass_invocation" + function.format(name="outer")
    )
    (package / "cmd_inner.py").write_text(
        "import click\n"
        "from treesnap.cli.command import SnapGroup, pass_invocation\n"
        "@click.group('inner', cls=SnapGroup)\n"
        "def inner(): 'Lies above.'\n"
        "@inner.command('leaf', examples=['top inner leaf'])\n"
        "@pass_invocation" + function.format(name="leaf")
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield LazyGroup(
        "top",
        commands_by_section={
            "Near": {"outer": ("lazy_commands.cmd_outer", "One word.")},
            "Far": {"inner": ("lazy_commands.cmd_inner", "Two words.")},
        },
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
    assert modules == {"", "cmd_inner"}


def test_help_of_a_group_imports_none_of_its_commands_and_has_its_sections(group):
    code, output, modules = run_group(group, "-h")

    assert code == 0
    assert re.search(r"Near:\n  outer +One word\n\nFar:\n  inner +Two words\n", output)
    assert "--store DIR" in output
    assert modules == set()


def test_help_of_a_group_in_a_group_has_the_sentences_of_its_commands(group):
    code, output, _ = run_group(group, "inner", "-h")

    assert code == 0
    assert re.search(r"Commands:\n  leaf +Says how the output is\n", output)
    assert "--store DIR" in output


def test_group_without_a_command_shows_its_help_and_is_a_usage_error(group):
    code, output, _ = run_group(group, "inner")

    assert code == 2
    assert "Lies above" in output
    assert "Says how the output is" in output


def test_group_refuses_a_command_that_it_does_not_have(group):
    code, output, _ = run_group(group, "inner", "nosuch")

    assert code == 2
    assert "No such command 'nosuch'" in output


def test_help_lists_every_command(snap):
    result = snap("help", "--all")

    tables = result.out.split(next(iter(COMMANDS)))[1]
    assert re.findall(r"^  ([a-z]+)  ", tables, re.MULTILINE) == ALL_COMMANDS
    assert [heading for heading in COMMANDS if f"\n{heading}:\n" in result.out] == list(COMMANDS)


def test_a_group_with_nothing_to_do_shows_its_help_and_is_a_usage_error(snap):
    result = snap("remote")

    assert (result.code, result.out) == (2, "")
    assert "Commands:" in result.err


@pytest.mark.parametrize("program", ["snap", "treesnap"])
def test_variable_of_click_prints_the_script_as_well(program, environment, root):
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
    request = {"_SNAP_COMPLETE": "zsh_complete", "COMP_LINE": "snap sta"}

    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, **request},
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )

    assert [word for word in result.stdout.split() if word in ALL_COMMANDS] == ["status", "stats"]


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


@pytest.mark.needs("linux")
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
