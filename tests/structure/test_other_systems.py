"""What differs between systems stays below the seam, and every module imports on the others.

``without_linux.py`` hides what only Linux has. ``mypy --platform darwin`` (``tox -e types``) finds
names that a Mac has not; what it cannot see is found here, in the syntax trees: names that are
asked for with ``getattr``, numbers of errors that mean another thing elsewhere, and paths.
"""

from __future__ import annotations

import ast
import fcntl
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import treesnap
from without_linux import MODULES, hidden_names

pytestmark = pytest.mark.sampled(10)

PACKAGE = Path(treesnap.__file__).parent
HOOK = Path(__file__).parents[1] / "support" / "without_linux.py"
UNIX = ("darwin", "freebsd14")
BELOW_THE_SEAM = ("core/fs/", "testing/")
OTHER_ERRORS = frozenset({"ENOATTR", "ENODATA", "ENOSYS", "ENOTSUP", "ENOTTY", "EOPNOTSUPP"})
"""Errors of what a system cannot, and of what is not there: each has others for it."""
EXEMPT = {
    ("__init__.py", "sys.platform"): "it says where treesnap runs",
    ("cli/start.py", "/proc"): "words of a user, which are compared and not followed",
    ("core/ops/context.py", "/proc"): "a root that is refused, wherever it is",
    ("mount/adapter.py", "os.SEEK_HOLE"): "the question of a libfuse, which has it then",
}
_DOTTED = re.compile(r"\b[a-z_]+\.\w+")
INHERITED = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
INHERITED["SNAP_UNPROVEN_SYSTEM"] = "1"
IMPORTS = """
import importlib, pkgutil, sys, treesnap
def walk(package):
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if found.name == "treesnap.core.fs.linux":
            continue
        try:
            module = importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            if "pip install" not in str(error):  # an extra that is not installed
                raise
        else:
            print(found.name)
            if found.ispkg:
                walk(module)
walk(treesnap)
"""


def run_elsewhere(
    system: str, program: str, *, is_tried: bool = True
) -> subprocess.CompletedProcess[str]:
    """Runs a text where treesnap sees another system, of which its user says that it is tried."""
    return subprocess.run(
        [sys.executable, HOOK, system, program],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"SNAP_UNPROVEN_SYSTEM": "1" if is_tried else "0"},
    )


@pytest.mark.parametrize("system", UNIX)
def test_every_module_imports_on_another_unix(system):
    done = run_elsewhere(system, IMPORTS)

    assert done.returncode == 0, done.stderr
    assert "treesnap.core.handle" in done.stdout.split()


COMMANDS = """
import os, sys
from treesnap.cli.main import execute
def run(words):
    code = execute([*words.split(), "-q"])
    assert code == 0, words
def write(path, text):
    with open(path, "w") as file:
        file.write(text)
os.chdir(sys.argv[3])
os.mkdir("directory"); os.symlink("nowhere", "link"); os.mkfifo("pipe")
write("a", "first"); write("directory/b", "b"); run("create"); run("status")
write("a", "second"); os.remove("directory/b"); os.mkdir("directory/b"); os.remove("link")
run("create"); run("restore latest~1")
assert (open("a").read(), open("directory/b").read()) == ("first", "b")
assert os.readlink("link") == "nowhere"
run("undo")
assert open("a").read() == "second" and os.path.isdir("directory/b")
run("redo")
assert open("a").read() == "first"
for words in ("list", "diff latest~1", "doctor", "verify --read-data", "gc", "root list"):
    run(words)
"""


@pytest.mark.parametrize("system", UNIX)
def test_everyday_commands_work_without_anything_of_linux(system, tmp_path):
    """Also without its calls in the C library, and with nothing below ``/proc``."""
    root = tmp_path / "elsewhere"
    root.mkdir()

    done = subprocess.run(
        [sys.executable, HOOK, system, COMMANDS, root],
        capture_output=True,
        text=True,
        check=False,
        env={"HOME": str(tmp_path), "SNAP_STORE": str(tmp_path / "store"), **INHERITED},
    )

    assert (done.returncode, done.stderr) == (0, "")


AGENTS = """
import io, json, os, sys
from treesnap.cli.main import execute
def run(*words, given=""):
    sys.stdin = io.TextIOWrapper(io.BytesIO(given.encode()))
    return execute([*words])
def tell(event, **fields):
    document = {"session_id": "s", "cwd": os.getcwd(), "hook_event_name": event, **fields}
    assert run("hook", "claude", given=json.dumps(document)) == 0, event
os.chdir(sys.argv[3])
open("kept", "w").write("kept")
assert run("create", "-q") == 0
tell("UserPromptSubmit", prompt="Break it")
call = {"tool_name": "Bash", "tool_use_id": "t", "tool_input": {"command": "break it"}}
tell("PreToolUse", **call)
open("made", "w").write("by the agent"); os.remove("kept")
tell("PostToolUse", **call)
tell("Stop")
assert run("rewind", "--session", "s", "-q") == 0
assert (os.listdir("."), open("kept").read()) == (["kept"], "kept")
assert run("run", "-q", "--", "sh", "-c", "rm kept; exit 3") == 3
assert open("kept").read() == "kept"
request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
assert run("mcp", given=json.dumps(request) + "\\n") == 0
"""


def test_agents_are_served_without_anything_of_linux(tmp_path):
    """Hooks capture, a rewind takes back what they saw, a failed command leaves no trace."""
    root = tmp_path / "elsewhere"
    root.mkdir()

    done = subprocess.run(
        [sys.executable, HOOK, "darwin", AGENTS, root],
        capture_output=True,
        text=True,
        check=False,
        env={"HOME": str(tmp_path), "SNAP_STORE": str(tmp_path / "store"), **INHERITED},
    )

    assert done.returncode == 0, done.stderr


def test_a_lock_is_asked_for_as_a_mac_lays_it_out():
    """Otherwise the kernel refuses the question, and that would count as no lock."""
    done = run_elsewhere(
        "darwin",
        "import struct; from treesnap.core.fs import record_locks as locks; "
        "print(locks._QUERY, struct.unpack('qqihh', locks._QUESTION))",
    )

    assert done.stdout == f"92 (0, 0, 0, {fcntl.F_WRLCK}, 0)\n"


def test_windows_is_refused_by_a_command_and_by_the_library():
    """Importing works, so that an installer or a tool that only looks does not fail."""
    start = "import sys; sys.argv = ['snap', 'create']; from treesnap.cli.start import main; main()"
    command = run_elsewhere("win32", start)
    library = run_elsewhere("win32", "import treesnap; print(treesnap.__version__); treesnap.open")

    assert (command.returncode, command.stdout) == (2, "")
    told = (
        f"treesnap {treesnap.__version__} runs on Linux, also in WSL on Windows, and not on Windows"
    )
    assert command.stderr == f"{told} yet\n"
    assert library.stdout == f"{treesnap.__version__}\n"
    assert library.stderr.splitlines()[-1] == f"ImportError: {command.stderr.strip()}"


@pytest.mark.parametrize("system", UNIX)
def test_a_system_without_a_run_yet_is_refused_unless_its_user_says_so(system):
    program = "import os, treesnap as t; print(t.unsupported()); "
    program += "os.environ['SNAP_UNPROVEN_SYSTEM'] = '1'; print(t.unsupported())"

    told = run_elsewhere(system, program, is_tried=False).stdout.splitlines()

    assert told[0].endswith(
        " and not on macOS yet" if system == "darwin" else " and not on FreeBSD yet"
    )
    assert told[1] == "None"


def test_what_depends_on_the_system_is_switched_in_one_place():
    """And said by name on the page of other systems."""
    page = (PACKAGE.parents[1] / "docs/explanation/systems.md").read_text(encoding="utf-8")
    program = "from treesnap.core.fs import system_parts as s; print(sorted(s().items()))"

    elsewhere = dict(ast.literal_eval(run_elsewhere("darwin", program).stdout))

    assert not any(elsewhere.values())
    assert [name for name in elsewhere if f"| `{name}` |" not in page] == []


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Yields the modules above the seam."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(BELOW_THE_SEAM):
            yield name, ast.parse(path.read_text(encoding="utf-8"))


def _imported_as(tree: ast.Module) -> dict[str, str]:
    """Returns the modules that are seen in part, by the names that a module gives them."""
    return {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name in MODULES or alias.name == "sys"
    }


def _names_used(tree: ast.Module) -> Iterator[tuple[str, str, int]]:
    """Yields each name of such a module that is used, however it is asked for."""
    known = _imported_as(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in known:
                yield known[node.value.id], node.attr, node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module in {*MODULES, "sys"}:
            for alias in node.names:
                yield node.module, alias.name, node.lineno
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) in {"getattr", "hasattr"}
            and ast.unparse(node.args[0]) in known
            and isinstance(node.args[1], ast.Constant)
        ):
            yield known[ast.unparse(node.args[0])], node.args[1].value, node.lineno


def _differs(module: str, name: str) -> bool:
    if module == "sys":
        return name == "platform"
    if module == "errno" and name in OTHER_ERRORS:
        return True
    return any(name in hidden_names(module, system) for system in UNIX)


def _paths_used(tree: ast.Module) -> Iterator[int]:
    """Yields the lines with texts that name ``/proc`` and are not documentation."""
    told = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in told:
            text = node.value
            if isinstance(text, str | bytes) and ("/proc" in str(text)):
                yield node.lineno


def findings(name: str, tree: ast.Module) -> Iterator[str]:
    """Yields what a module above the seam knows of one system."""
    for module, used, line in _names_used(tree):
        if _differs(module, used) and (name, f"{module}.{used}") not in EXEMPT:
            yield f"{name}:{line} {module}.{used}"
    for line in _paths_used(tree):
        if (name, "/proc") not in EXEMPT:
            yield f"{name}:{line} /proc"


def test_above_the_seam_nothing_differs_by_system():
    assert [found for name, tree in modules() for found in findings(name, tree)] == []


def test_what_differs_is_found_however_it_is_written():
    tree = ast.parse(
        "import os, sys, _signal as signal\n"
        "from errno import ENOTSUP\n"
        "getattr(os, 'O_PATH', 0), os.listxattr, signal.pidfd_send_signal, sys.platform\n"
        "f'/proc/self/fd/{fd}', os.O_RDONLY, signal.SIGINT\n"
        "'''documentation of /proc'''\n"
    )

    assert sorted(found.partition(" ")[2] for found in findings("x.py", tree)) == [
        "/proc",
        "_signal.pidfd_send_signal",
        "errno.ENOTSUP",
        "os.O_PATH",
        "os.listxattr",
        "sys.platform",
    ]


def _outside_of_functions(tree: ast.AST) -> Iterator[ast.AST]:
    """Yields what runs when a module is imported."""
    for node in ast.iter_child_nodes(tree):
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for part in (*node.decorator_list, *node.args.defaults, *node.args.kw_defaults):
                if part is not None:
                    yield from ast.walk(part)
        elif not isinstance(node, ast.Lambda):
            yield from _outside_of_functions(node)


def test_tests_are_collected_on_every_unix():
    """One that asks for what is not there while it is imported ends the whole run."""
    tests = HOOK.parents[1]
    hidden = {
        f"{module}.{name}"
        for module in MODULES
        for system in UNIX
        for name in hidden_names(module, system)
    }
    found = [
        f"{path.relative_to(tests)}:{node.lineno} {ast.unparse(node)}"
        for path in sorted(tests.rglob("*.py"))
        if not hidden.isdisjoint(_DOTTED.findall(text := path.read_text(encoding="utf-8")))
        for node in _outside_of_functions(ast.parse(text))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in hidden
    ]

    assert found == []
