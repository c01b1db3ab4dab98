"""Rules of CONTRIBUTING.md that no linter knows.

Every rule gives a list of places that break it, and the list has to be empty.
A new home for an effect is added to the tables below, on purpose.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from functools import cache
from inspect import signature
from pathlib import Path

import pytest

from treesnap.core.fs.base import FileSystem, ReadingFileSystem
from treesnap.testing.doubles import KINDS, MUTATING

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "src" / "treesnap"

COMMANDS = ["cli/*", "*/command.py", "*/commands/*"]
"""The command line, and the commands of features."""

HOMES = {
    # Writing to the file system: one seam, so that tests can fail any call of it.
    "open": ["core/fs/linux.py", "core/fs/posix.py", "testing/*"],
    "io.open": [],
    "os.replace": ["core/fs/linux.py", "core/fs/posix.py", "testing/*"],
    "os.rename": ["core/fs/linux.py", "core/fs/posix.py", "testing/*"],
    "os.renames": [],
    "os.fsync": ["core/fs/darwin.py", "core/fs/posix.py", "testing/*"],
    "os.fdatasync": ["core/fs/linux.py", "core/fs/posix.py", "testing/*"],
    "os.unlink": ["core/fs/linux.py", "core/fs/posix.py", "testing/*"],
    "os.remove": ["core/fs/linux.py", "core/fs/posix.py", "testing/*"],
    "os.removedirs": [],
    "os.rmdir": ["core/fs/linux.py", "core/fs/posix.py", "testing/*"],
    "os.mkdir": ["core/fs/linux.py", "core/fs/posix.py", "testing/*"],
    "os.makedirs": ["testing/*"],
    "os.truncate": [],
    "os.O_TRUNC": [],
    "os.chmod": ["core/fs/linux.py", "core/fs/posix.py", "testing/*"],
    "os.chown": ["core/fs/linux.py", "core/fs/posix.py", "testing/*"],
    "os.utime": ["core/fs/linux.py", "core/fs/posix.py", "testing/*"],
    "os.setxattr": ["core/fs/linux.py", "core/fs/posix.py", "testing/*"],
    "os.removexattr": ["core/fs/linux.py", "core/fs/posix.py", "testing/*"],
    "os.link": ["core/fs/linux.py", "core/fs/posix.py", "testing/*"],
    "os.lchown": [],
    "os.lchmod": [],
    "shutil.*": [
        "core/ops/history/text_conversion.py",  # removes a directory of its own
        "agents/host_process.py",  # looks for programs
        "cli/completion.py",  # the same
        "mount/mount_point.py",  # the same
        "schedule/scheduler.py",  # the same
        "testing/*",
    ],
    "tempfile.*": [
        "core/ops/history/text_conversion.py",  # a copy for a program that the user named
        "core/fs/posix.py",  # a file without a name
        "core/watch/follower.py",  # what a command prints
        "remote/spool.py",  # what was delivered
        "notebook.py",  # a page that is shown in place
        "testing/*",
    ],
    "sqlite3.*": [
        "core/ops/history/archive_tree.py",  # a temporary file without a name
        "core/ops/history/sqlite_text.py",  # a program of its own
    ],
    # The clock, which is passed in.
    "time.time": [],
    "time.time_ns": ["core/ops/context.py"],
    "datetime.now": [],
    "datetime.utcnow": [],
    "datetime.today": [],
    "date.today": [],
    # Chance: only keys, names of temporary and random files, and samples from a given seed.
    "random.*": [],
    "uuid.*": ["compat/maestro.py"],
    "os.urandom": [
        "agents/conversation.py",  # the password of a server that ends at once
        "remote/blobs/directory.py",
        "remote/blobs/probe.py",
        "core/fs/durable.py",
        "remote/*",
        "core/store/*",
        "core/worktree/apply/stage.py",
        "core/worktree/watcher.py",
    ],
    "secrets.*": [],
    # The environment and the terminal.
    "os.environ": [
        "__init__.py",  # whether a user tries a system without a run yet
        "core/fs/__init__.py",
        "core/fs/native.py",
        *COMMANDS,
        "mount/fuse.py",
        "core/ops/context.py",
        "core/ops/processes.py",
        "core/watch/follower.py",  # a program that the user named gets it
        "remote/blobs/aws_profile.py",  # where the user's own settings are
        "remote/blobs/bucket.py",  # which profile of those
        "remote/blobs/rclone.py",  # what the program gets, with its key
        "remote/blobs/ssh.py",  # which program connects
    ],
    "os.getenv": [],
    "print": [*COMMANDS, "notebook.py"],
    # What runs this interpreter, which has to be told to import nothing from where it stands.
    "sys.executable": ["core/own_program.py"],
    "sys.stdout": [*COMMANDS, "core/ops/history/sqlite_text.py"],
    "sys.stderr": COMMANDS,
}
"""What may be named where, as patterns relative to the package."""

FOLLOWING = {"chmod", "chown", "utime", "setxattr", "removexattr", "link"}
"""Functions of ``os`` that change what a link leads to, unless they are told not to."""
TAKING_METHODS = {"unlink", "rename", "rename_to_absent", "exchange", "remove_directory"}
"""Methods of the file system that take a name away, or give it to something else."""
TAKERS = [
    # In stores.
    "core/fs/durable.py",  # what is published by a rename, and what no process holds any more
    "core/ops/maintenance/store_place.py",  # the store as a whole, behind its closed gate
    "core/ops/maintenance/store_links.py",  # likewise, and the links to it
    "remote/cache.py",  # what can be read again
    "core/store/packs.py",  # a writer's own new pack
    "core/store/quarantine.py",
    "core/store/snapshots.py",
    # Sockets and cookies, which are of no value.
    "core/fs/listener.py",
    "core/ops/known_changes.py",
    "core/worktree/watcher.py",
    # Users' files.
    "agents/install/settings_file.py",
    "agents/session_status.py",
    "remote/blobs/directory.py",
    "core/ops/history/archive.py",
    "core/ops/restore/*",
    "compat/sidecar_files.py",
    "core/worktree/apply/*",
    # Something else that is called so.
    "core/ops/run/checkpoint.py",
    "plans/repository.py",
    "remote/keys.py",  # keys
    "core/fs/darwin.py",
    "core/fs/posix.py",
    "testing/*",
]
PACK_TAKERS = ["core/store/fence.py", "core/store/packs.py", "core/store/writer.py"]
"""Modules that name the file of a pack: only ``fence`` takes away another's."""
CHANGERS = [
    "core/store/collector.py",
    "core/store/fence.py",
    "core/store/maintenance/check/metadata_files.py",
    "core/store/maintenance/check/repair.py",
    "core/store/maintenance/collection.py",
    "core/store/store.py",
    "core/store/writer.py",
]
"""Modules that get the whole file system from a store; ``Store.fs`` can only read."""

BANNED_METHODS = {"write_text", "write_bytes", "read_text", "read_bytes"}
"""Methods of pathlib that would go past the seam."""


@cache
def project_files() -> tuple[Path, ...]:
    """Returns all files of the project that are, or would be, under version control."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=PROJECT,
        capture_output=True,
        check=False,
    )
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    paths = (PROJECT / name for name in listing.stdout.decode().split("\0") if name)
    return tuple(path for path in paths if path.is_file())


@cache
def text_of(path: Path) -> str | None:
    """Returns a file's text, or None when it is binary."""
    content = path.read_bytes()
    if b"\0" in content:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


def python_files(below: Path = PROJECT) -> list[Path]:
    """Returns the Python files of the project below a directory."""
    return [path for path in project_files() if path.suffix == ".py" and below in path.parents]


@cache
def parsed(path: Path) -> ast.Module:
    """Returns the syntax tree of a Python file."""
    return ast.parse(text_of(path) or "", filename=str(path))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Returns everything in the syntax tree of a Python file."""
    return tuple(ast.walk(parsed(path)))


def shown(path: Path, line: int | None = None) -> str:
    """Returns a place as people write it."""
    name = str(path.relative_to(PROJECT))
    return name if line is None else f"{name}:{line}"


def test_every_module_says_what_it_is():
    begins_with_docstring = re.compile(r'(?:#.*\n|\s)*(?:"""|")\s*[^\s"]')

    assert [
        shown(path)
        for path in python_files()
        if (text := text_of(path) or "").strip() and not begins_with_docstring.match(text)
    ] == []


def test_digits_in_patterns_are_those_of_ascii():
    """A ``\\d`` for text matches the digits of every script, and so does ``int()``."""
    assert [
        shown(path, node.lineno)
        for path in python_files(PACKAGE)
        if r"\d" in (text_of(path) or "")
        for node in nodes_of(path)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).startswith("re.")
        and any(
            isinstance(part, ast.Constant) and isinstance(part.value, str) and r"\d" in part.value
            for part in ast.walk(node)
        )
        and "re.ASCII" not in ast.unparse(node)
    ] == []


def test_effects_stay_in_their_homes():
    assert [
        f"{shown(path, line)} {name}"
        for path in python_files(PACKAGE)
        for name, line in effects(nodes_of(path))
        if not may_name(name, str(path.relative_to(PACKAGE)))
    ] == []


def calls_of(path: Path, names: set[str]) -> Iterator[tuple[str, int]]:
    """Yields the calls in a file of methods by name, or by ``OWNER.NAME``."""
    for node in nodes_of(path):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name, owner = node.func.attr, node.func.value
            own = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            if names & {name, f"{own.lstrip('_')}.{name}"}:
                yield name, node.lineno


@pytest.mark.parametrize(
    ("names", "homes"),
    [(TAKING_METHODS, TAKERS), ({"layout.pack"}, PACK_TAKERS)],
    ids=["any", "packs"],
)
def test_what_takes_something_away_stays_in_its_homes(names, homes):
    assert [
        f"{shown(path, line)} {name}"
        for path in python_files(PACKAGE)
        for name, line in calls_of(path, names)
        if not any(fnmatch(str(path.relative_to(PACKAGE)), home) for home in homes)
    ] == []


def test_only_who_changes_a_store_gets_more_of_it_than_reading():
    named = {
        str(path.relative_to(PACKAGE))
        for path in python_files(PACKAGE)
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute) and node.attr == "writing_fs"
    }

    assert sorted(named) == CHANGERS


def test_no_change_follows_a_link():
    """A call gets a descriptor, or is told not to follow; the mode is set by descriptor alone."""
    assert [
        f"{shown(path, node.lineno)} {ast.unparse(node)}"
        for path in [PACKAGE / "core" / "fs" / f"{name}.py" for name in ("linux", "posix")]
        for node in nodes_of(path)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func.value) == "os"
        and node.func.attr in FOLLOWING
        and ast.unparse(node.args[0]) not in {"fd", "place"}
        and "follow_symlinks" not in {keyword.arg for keyword in node.keywords}
    ] == []
    assert list(signature(FileSystem.change_mode).parameters) == ["self", "place", "mode"]


def test_what_only_reads_can_change_nothing():
    """The type that readers take has no call that does; ``open`` may make a file at most."""
    changing = [method for method, kind in KINDS.items() if kind in MUTATING]

    assert [method for method in changing if hasattr(ReadingFileSystem, method)] == []


def test_files_are_read_and_written_through_the_seam():
    assert [
        f"{shown(path, node.lineno)} {node.func.attr}"
        for path in python_files(PACKAGE)
        for node in nodes_of(path)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in BANNED_METHODS
        and not path.is_relative_to(PACKAGE / "testing")
    ] == []


def test_sealed_files_are_written_by_their_format_alone():
    """``Format.seal`` reads back what it writes; nothing goes past it."""
    past = re.compile(r"\bimport\b[^()\n]*\bseal\b|^    seal,$|envelope\.seal\b", re.MULTILINE)

    assert [
        shown(path)
        for path in python_files(PACKAGE)
        if past.search(text_of(path) or "") and not path.is_relative_to(PACKAGE / "testing")
    ] == []


def test_objects_are_stored_by_sinks_that_read_them_back():
    sinks = {
        shown(path)
        for path in python_files(PACKAGE)
        for node in nodes_of(path)
        if isinstance(node, ast.FunctionDef)
        and node.name == "put"
        and [argument.arg for argument in node.args.args] == ["self", "kind", "data"]
        and "check_object(kind, data)" not in ast.unparse(node)
        and any(isinstance(item, ast.Return) for item in ast.walk(node))
    }

    assert sinks == {  # they pass on to a writer
        "src/treesnap/core/ops/maintenance/object_recovery.py",
        "src/treesnap/remote/fetch.py",
    }


NAMES_OF_OTHERS = {"Checkpoint", "CheckpointManager"}
"""Classes that compat has because the systems that it stands in for call them so."""


def test_no_two_classes_share_a_name():
    names = Counter(
        node.name
        for path in python_files(PACKAGE)
        for node in parsed(path).body
        if isinstance(node, ast.ClassDef)
    )

    assert {name for name, count in names.items() if count > 1} == NAMES_OF_OTHERS


def functions_of(path: Path) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yields the functions of a Python file, with their names as ``CLASS.METHOD``."""
    for node in nodes_of(path):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                owner = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
                yield owner + child.name, child


PARAMETERS_MAX = 8
DOORS = ["core/handle.py"]
"""Modules whose functions users call by keyword: there keyword-only options count as one."""


def parameter_count(
    function: ast.FunctionDef | ast.AsyncFunctionDef, *, is_method: bool, is_door: bool
) -> int:
    """Returns how many parameters a function has, without the object of a method."""
    given = function.args
    count = len(given.posonlyargs) + len(given.args) + (given.vararg is not None)
    count -= is_method and "staticmethod" not in map(ast.unparse, function.decorator_list)
    options = len(given.kwonlyargs) + (given.kwarg is not None)
    return count + (min(options, 1) if is_door else options)


def test_no_function_of_the_core_has_more_than_eight_parameters():
    """Those that travel together are one object."""
    assert [
        f"{module} {name}"
        for path in python_files(PACKAGE / "core")
        for module in [str(path.relative_to(PACKAGE))]
        for name, function in functions_of(path)
        if parameter_count(function, is_method="." in name, is_door=module in DOORS)
        > PARAMETERS_MAX
    ] == []


LINES_MAX = 60
ONE_WAY_THROUGH = {
    "core/fs/forked.py": ["share_out"],
    "core/ops/create.py": ["create"],
    "core/ops/merge/trees.py": ["merge", "_merged"],
    "core/ops/restore/attempt.py": ["restore_to", "_RestoreAttempt.restore", "dry_run"],
    "core/ops/undo.py": ["restore"],
    "core/worktree/scan/scanner.py": ["Scanner.scan", "Scanner.enter", "Directory.__init__"],
}
"""Functions that read like the list of steps in their docstring, which counts too."""


def line_count(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Returns how many lines a function has, with its docstring."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def test_no_function_of_the_core_is_longer_than_a_page():
    assert [
        f"{shown(path)} {name}"
        for path in python_files(PACKAGE / "core")
        for name, function in functions_of(path)
        if line_count(function) - len((ast.get_docstring(function) or "").splitlines()) > LINES_MAX
    ] == []


@pytest.mark.parametrize("module", ONE_WAY_THROUGH)
def test_the_steps_stand_in_order_in_one_function(module):
    counts = {name: line_count(function) for name, function in functions_of(PACKAGE / module)}
    names = ONE_WAY_THROUGH[module]

    assert [name for name in names if name not in counts] == []
    assert [name for name in names if counts[name] > LINES_MAX] == []


def test_nothing_is_left_for_later():
    words = ["TO" + "DO", "FIX" + "ME", "XX" + "X"]

    assert places_of(rf"\b(?:{'|'.join(words)})\b") == []


FORBIDDEN_WORDS = {
    "nobody": "the process, the user or the reader that does not",
    "somebody": "the process, the user or the reader that does",
    "whoever": "the process, the user or the reader that does",
    "who needs": "the process that needs it",
    "taken back": "undone, or rolled back",
    "manieth": "the Nth",
    "outlook": "known changes",
    "surely": "what is known, and why",
    "distrusted": "racy",
    "rescued?": "recovered, or preserved",
    "salvaged?": "recovered",
    "examination": "checker",
    "survey": "pack usage, or a scan",
    "keep up": "maintain",
    "upkeep": "maintenance",
}
"""Words that say too little, or that stood here for something else; with what to say."""


def test_words_that_say_too_little_are_not_used():
    """In names too; but a user is called so, and a file of an old store holds one of them."""
    pattern = "|".join(FORBIDDEN_WORDS).replace(" ", "[ _]")
    found = places_of(rf"(?i)(?<!as_)(?<![a-z])(?:{pattern})s?(?![a-z])(?!_ID)", suffix=".py")
    not_words = (shown(Path(__file__)), "tests/formats/make_store.py")

    assert [place for place in found if not place.startswith(not_words)] == []


def test_what_something_is_not_is_said_with_not():
    """Except of what is absent: "there is no"."""
    expression = re.compile(
        r"(?<!there )\b(?:is|are|was|were) no (?!longer\b|more\b)", re.IGNORECASE
    )

    assert [
        shown(path, number)
        for path in python_files(PACKAGE)
        for number, line in enumerate((text_of(path) or "").splitlines(), start=1)
        if expression.search(line)
    ] == []


def test_no_path_of_one_machine_is_written_down():
    places = "|".join(["wo" + "rk", "ro" + "ot", "var/" + "tmp", "ho" + "me/[a-z]+"])

    assert places_of(rf"(?<![\w.$}}/~-])/(?:{places})/") == []


def test_every_exemption_names_its_rule_and_its_reason():
    bare = (
        r"# (?:type: ignore|noqa|pragma: no cover)(?:\[[\w,-]+\]|: [A-Z]+\d+(?:, ?[A-Z]+\d+)*)?\s*$"
    )

    assert places_of(bare, suffix=".py") == []


def test_the_tables_of_homes_name_files_that_exist():
    homes = {home for allowed in HOMES.values() for home in allowed if "*" not in home}

    assert [home for home in sorted(homes) if not (PACKAGE / home).is_file()] == []


def test_tests_and_modules_that_texts_name_exist():
    """In pages, decisions and docstrings, each name leads to what it says."""
    files = {shown(path) for path in project_files()}
    there = files | {str(directory) for name in files for directory in Path(name).parents}
    modules = {name.removesuffix(".py").replace("/", ".") for name in there}
    above = [*PACKAGE.iterdir(), *(PACKAGE / "core").iterdir()]
    packages = "|".join(path.name for path in above if path.is_dir())
    lost = []
    for path in project_files():
        if path.suffix not in {".md", ".py"} or path.name == "CHANGELOG.md":
            continue
        text = text_of(path) or ""
        tests = re.findall(r"`(tests/[a-z0-9_./-]+)(?:::[^`]*)?`", text)
        dotted = re.findall(rf"``((?:{packages})\.[a-z_.]+)``", text)
        lost += [(shown(path), named) for named in tests if named.rstrip("/") not in there]
        lost += [
            (shown(path), named)
            for named in dotted
            if not any(f".{module}".endswith(f".{named}") for module in modules)
        ]

    assert lost == []


def test_messages_of_the_library_name_no_command():
    """Advice is what an error has as its hint; MAKER's blocks have suggestions by their format."""
    advisers = [
        *COMMANDS,
        "core/model/hints.py",
        "core/features.py",  # the first sentences of the help of commands
        "compat/maker_result.py",
    ]
    told = [place for place in places_of(r"'snap [a-z]", ".py") if place.startswith("src/")]
    modules = {place.partition(":")[0].removeprefix("src/treesnap/") for place in told}

    assert [name for name in modules if not any(fnmatch(name, home) for home in advisers)] == []


def places_of(pattern: str, suffix: str = "") -> list[str]:
    """Returns every place in the project's text files where a pattern matches."""
    expression = re.compile(pattern, re.MULTILINE)
    return [
        shown(path, number)
        for path in project_files()
        if path.name.endswith(suffix) and expression.search(text_of(path) or "")
        for number, line in enumerate((text_of(path) or "").splitlines(), start=1)
        if expression.search(line)
    ]


def effects(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    """Yields every name with an effect that a module uses, with its line."""
    for node in nodes:
        match node:
            case ast.Call(func=ast.Name(id="open" | "print" as name)):
                yield name, node.lineno
            case ast.Attribute(value=ast.Name(id=module), attr=attribute):
                yield f"{module}.{attribute}", node.lineno
            case ast.Attribute(value=ast.Attribute(attr=module), attr=attribute):
                yield f"{module}.{attribute}", node.lineno
            case ast.ImportFrom(module=str(module)):
                for alias in node.names:
                    yield f"{module}.{alias.name}", node.lineno


def may_name(name: str, module_path: str) -> bool:
    """Returns whether a module of the package may use a name."""
    return all(any(fnmatch(module_path, home) for home in homes) for homes in homes_of(name))


@cache
def homes_of(name: str) -> list[list[str]]:
    """Returns where a name is at home, by each pattern that it matches."""
    return [homes for pattern, homes in HOMES.items() if fnmatch(name, pattern)]
