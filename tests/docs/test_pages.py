"""What the documentation says is what happens.

Every ``console`` block of README.md and docs/ is typed into one shell per page;
every ``python`` block is run; the reference pages are compared with the code.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from mount.conftest import detach, mount_points, require_fuse
from sampling import IS_FULL, sized
from warm_snap import warm_snap

PROJECT = Path(__file__).parents[2]
DOCS = PROJECT / "docs"
REFERENCE = DOCS / "reference"
PAGES = [PROJECT / "README.md", *sorted(DOCS.rglob("*.md"))]
RUN_ELSEWHERE = {DOCS / "howto" / f"{name}.md" for name in ("agent-frameworks", "daytona", "e2b")}
"""Their examples need what ``tox -e frameworks`` or ``tox -e sandboxes`` has; the tests of those
run them."""
RUN_AGAIN = [DOCS / "doors" / "data.md", DOCS / "howto" / "notebooks.md"]
"""Pages whose Python is run cell by cell, and again, in one directory."""
MOUNTS = {DOCS / "howto" / "mount.md"}
"""Pages whose commands need FUSE."""
PAGE_TIMEOUT_S = 120
MARK = "--8<-- command"
TYPED_AS_INSTALLED = {PROJECT / "README.md"}
"""Pages whose commands are really started in each run, and not forked."""
KILLED_FILES = sized(500, 2000)
"""How many files a restore of the comparison brings back that is killed midway."""
MEASURING = "COVERAGE_"
"""What the variables begin with that make commands count their lines, which takes longer."""


def page_id(page: Path) -> str:
    """Returns a page's name in the list of tests."""
    return str(page.relative_to(PROJECT))


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """Returns the code blocks of a page in one language, each with its first line's number."""
    tokens = MarkdownIt().parse(page.read_text(encoding="utf-8"))
    return [
        (token.map[0] + 2, token.content)
        for token in tokens
        if token.type == "fence" and token.info.strip() == language and token.map
    ]


def pages_with(language: str) -> list[Path]:
    """Returns the pages that have a code block in a language; to parse them all takes long."""
    fence = f"```{language}\n"
    return [page for page in PAGES if fence in page.read_text(encoding="utf-8")]


def environment_of_a_user() -> dict[str, str]:
    """Returns the variables of a user who has just installed treesnap, without a home."""
    hidden = {"SNAP_STORE", "XDG_DATA_HOME", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE"}
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in hidden and not name.startswith(MEASURING)
    }
    return kept | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "COLUMNS": "100",
        "TERM": "dumb",
        "PYTHONUNBUFFERED": "1",  # both streams in the order in which a terminal shows them
    }


@pytest.fixture
def environment(tmp_path):
    """The environment of a user who has just installed treesnap."""
    return environment_of_a_user() | {"HOME": str(tmp_path)}


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """The directory of a ``snap`` that is forked, see ``warm_snap``."""
    with warm_snap(tmp_path_factory.mktemp("warm"), environment_of_a_user()) as directory:
        yield directory


@pytest.fixture
def without_mounts(tmp_path):
    """Ends the mounts that a page leaves, such as one of which a command failed."""
    yield
    for place in mount_points():
        if place.is_relative_to(tmp_path):
            detach(place)


class Command:
    """One command of a page, and what the page says it prints."""

    def __init__(self, line: int, text: str) -> None:
        self.line = line
        self.text = text
        self.expected: list[str] = []


def commands(page: Path) -> list[Command]:
    """Returns the commands of all console blocks of a page, in order."""
    found: list[Command] = []
    for first, content in blocks(page, "console"):
        for line, text in enumerate(content.splitlines(), start=first):
            if text.startswith("$ "):
                found.append(Command(line, text[2:]))
            elif text.startswith("> ") and not found[-1].expected:
                found[-1].text += "\n" + text[2:]
            else:
                found[-1].expected.append(text)
    return found


def pattern_of(expected: list[str]) -> re.Pattern[str]:
    """Returns what the output has to match.

    ``...`` alone stands for any lines, inside a line for any text; a run of at
    least eight hex digits stands for any other one of the same length.
    """
    pattern = ""
    for line in expected:
        if line.strip() == "...":
            pattern += r"(?:.*\n)*?"
            continue
        pieces = (re.escape(piece) for piece in line.split("..."))
        any_id = (re.sub(r"(?<![0-9a-f])[0-9a-f]{8,64}(?![0-9a-f])", hex_run, p) for p in pieces)
        pattern += ".*".join(any_id) + r"\n"
    return re.compile(pattern)


def hex_run(match: re.Match[str]) -> str:
    """Returns a pattern for any id as long as the one that is shown."""
    return f"[0-9a-f]{{{len(match.group())}}}"


def run_page(page: Path, directory: Path, environment: dict[str, str]) -> list[tuple[str, int]]:
    """Types all commands of a page into one shell; returns the output and status of each."""
    lines = ["set -o pipefail", "exec 2>&1", "status=0"]
    for command in commands(page):
        lines += ["(exit $status)", command.text, "status=$?", f'echo "{MARK} $status"']
    result = subprocess.run(
        ["bash", "--noprofile", "--norc", "-c", "\n".join(lines)],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PAGE_TIMEOUT_S,
        check=False,
    )
    pieces = re.split(rf"{MARK} (\d+)\n", result.stdout)
    return list(zip(pieces[::2], map(int, pieces[1::2]), strict=False))


NEEDS = {
    "docs/howto/recover-on-another-machine.md": "exchange",
    "docs/howto/watch-a-directory.md": "notices",
    "docs/reference/library.md": "notices",
}
"""What pages show that not every Unix has."""


def cases(language: str) -> list[Any]:
    """Returns the pages with blocks in a language, as parameters."""
    return [
        pytest.param(
            page,
            id=page_id(page),
            marks=[pytest.mark.needs(NEEDS[page_id(page)])] if page_id(page) in NEEDS else [],
        )
        for page in pages_with(language)
        if page not in RUN_ELSEWHERE
    ]


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("without_mounts")
@pytest.mark.parametrize("page", cases("console"))
def test_commands_do_what_the_page_says(page, tmp_path, environment, warm):
    """A command may fail only where the page goes on to show its exit code."""
    if page in MOUNTS:
        require_fuse()
    if not IS_FULL and page not in TYPED_AS_INSTALLED:
        environment["PATH"] = f"{warm}:{environment['PATH']}"
    typed = commands(page)
    may_fail = [following.text == "echo $?" for following in typed[1:]] + [False]

    outcomes = run_page(page, tmp_path, environment)

    wrong = [
        f"{page_id(page)}:{command.line} $ {command.text}\n{output}[exit {status}]"
        for command, (output, status), excused in zip(typed, outcomes, may_fail, strict=True)
        if not pattern_of(command.expected).fullmatch(output) or (status and not excused)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", cases("python"))
def test_python_examples_run(page, tmp_path, environment):
    run_python_blocks(page, tmp_path, environment)


@pytest.mark.parametrize("page", RUN_AGAIN, ids=page_id)
def test_python_examples_for_notebooks_run_twice(page, tmp_path, environment):
    for _ in range(2):
        run_python_blocks(page, tmp_path, environment)


def run_python_blocks(page: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    """Runs the Python blocks of a page as one script; fails where the script does."""
    script = ""
    for first, content in blocks(page, "python"):
        script += "\n" * (first - 1 - script.count("\n")) + content
    path = tmp_path / page.with_suffix(".py").name
    path.write_text(script, encoding="utf-8")

    result = subprocess.run(
        [sys.executable, str(path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PAGE_TIMEOUT_S,
        check=False,
    )

    assert result.returncode == 0, result.stderr


def sections(page: Path, level: str) -> dict[str, str]:
    """Returns the text below each heading of a level, by the heading's text."""
    parts = re.split(rf"^{level} (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def click_commands(group, prefix="snap"):
    """Yields every command below a group with its full name."""
    import click

    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        full_name = f"{prefix} {name}"
        if isinstance(command, click.Group):
            yield from click_commands(command, full_name)
        elif not command.hidden:
            yield full_name, command


def long_options(command) -> set[str]:
    """Returns the long options that a command accepts."""
    import click

    return {
        option
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden
        for option in (*parameter.opts, *parameter.secondary_opts)
        if option.startswith("--")
    }


def root_command():
    """Returns the click group that ``snap`` runs."""
    from treesnap.cli.group import snap

    return snap


def test_every_command_is_documented_and_no_other():
    documented = {title.strip("`") for title in sections(REFERENCE / "cli.md", "###")}
    documented = {title for title in documented if title.startswith("snap ")}

    assert documented == {name for name, _ in click_commands(root_command())}


def test_commands_are_documented_in_the_sections_of_the_help():
    from treesnap.cli.commands import COMMANDS

    page = sections(REFERENCE / "cli.md", "##")

    assert {
        heading: set(re.findall(r"^### `snap ([a-z]+)", page[heading], re.MULTILINE))
        for heading in COMMANDS
    } == {heading: set(names) for heading, names in COMMANDS.items()}


def test_every_option_is_documented_and_no_other():
    page = {
        title.strip("`"): set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))
        for level in ("##", "###")
        for title, text in sections(REFERENCE / "cli.md", level).items()
    }
    common = page["Common options"] | {"--help"}

    documented = {
        name: page.get(name, set()) - common for name, _ in click_commands(root_command())
    }

    assert documented == {
        name: long_options(command) - common for name, command in click_commands(root_command())
    }


def table_rows(text: str) -> list[list[str]]:
    """Returns the cells of the body rows of the tables in a text."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return [
        row
        for row, following in zip(cells, [*cells[1:], []], strict=True)
        if not set(row[0]) <= {"-", " "} and not (following and set(following[0]) == {"-"})
    ]


def test_every_error_code_is_documented_with_its_class():
    from treesnap.core.model import errors

    rows = table_rows(sections(REFERENCE / "errors.md", "##")["Error codes"])

    assert [row[0].strip("`") for row in rows] == [code.value for code in errors.ErrorCode]
    assert [row[1] for row in rows if not hasattr(errors, row[1].strip("`"))] == []


def test_every_error_code_is_documented_with_its_exit_code():
    from treesnap.cli import failure

    rows = table_rows(sections(REFERENCE / "errors.md", "##")["Error codes"])

    assert {row[0].strip("`"): int(row[2]) for row in rows} == {
        code.value: exit_code for code, exit_code in failure.EXIT_CODES.items()
    }


def test_every_warning_code_is_documented():
    from treesnap.core.model import errors

    rows = table_rows(sections(REFERENCE / "errors.md", "##")["Warning codes"])

    assert [row[0].strip("`") for row in rows] == [code.value for code in errors.WarningCode]


def test_every_exit_code_is_documented():
    from treesnap.cli import failure

    rows = table_rows(sections(REFERENCE / "errors.md", "##")["Exit codes"])

    assert [int(row[0]) for row in rows] == [code.value for code in failure.ExitCode]


def test_json_page_names_every_schema():
    titles = sections(REFERENCE / "json.md", "##")

    documented = {title.strip("`") for title in titles if title.startswith("`treesnap.")}

    assert documented == {
        f"treesnap.{name.removeprefix('snap ').replace(' ', '.')}/1"
        for name, _ in click_commands(root_command())
    } | {"treesnap.error/1", "treesnap.overview/1", "treesnap.schedule.cron/1"}


def test_no_page_holds_the_marks_of_a_conflict():
    marks = ("<<<<<<< ", ">>>>>>> ")

    lines = [(page.name, line) for page in PAGES for line in page.read_text().splitlines()]

    assert [item for item in lines if item[1].startswith(marks)] == []


def test_links_between_pages_lead_somewhere():
    link = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")

    broken = [
        f"{page_id(page)} -> {target}"
        for page in [*PAGES, *PROJECT.glob("*.md")]
        for target in link.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert broken == []


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_files_that_a_developer_is_sent_to_exist(name):
    page = (PROJECT / name).read_text(encoding="utf-8")
    sent_to = re.findall(r"`([a-z_/]+/[a-z_]+\.(?:py|md))`", page)

    assert [
        path
        for path in sent_to
        if not (PROJECT / path).is_file() and not (PROJECT / "src" / "treesnap" / path).is_file()
    ] == []
    assert name == "ARCHITECTURE.md" or len(sent_to) > 10


@pytest.mark.parametrize(
    "name",
    [
        "explanation/threat-model.md",
        "reference/promises.md",
        "systems/cleveragents.md",
        "systems/maker.md",
    ],
)
def test_pages_name_tests_that_exist(name):
    page = (DOCS / name).read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page)

    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (PROJECT / path).is_file()
        or (name and f"def {name}(" not in (PROJECT / path).read_text(encoding="utf-8"))
    ]
    assert named
    assert missing == []


def readme_commands() -> list[str]:
    """Returns the two one-line commands of the README."""
    return [content.strip() for _, content in blocks(PROJECT / "README.md", "sh")]


def test_ci_runs_the_test_command_of_the_readme():
    lines = (PROJECT / ".ci" / "run").read_text(encoding="utf-8").splitlines()

    assert lines[-1] == readme_commands()[1]
    assert all("\n" not in command for command in readme_commands())


def test_first_restore_example_runs(environment):
    result = subprocess.run(
        ["sh", str(PROJECT / "examples" / "first_restore.sh")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PAGE_TIMEOUT_S,
        check=False,
    )

    assert result.returncode == 0, result.stdout + result.stderr
    assert "identical to the copy" in result.stdout


def forked(tool, warm: Path):
    """Returns a tool whose commands are forked, but for the ones that are killed."""

    class Forked(tool):
        def run(self, command: str) -> None:
            installed = self.environment
            self.environment = installed | {"PATH": f"{warm}:{installed['PATH']}"}
            try:
                super().run(command)
            finally:
                self.environment = installed

    return Forked


@pytest.mark.needs("attributes")
@pytest.mark.parametrize(
    "tool_name",
    ["git stash", "shadow git", "treesnap", pytest.param("restic", marks=pytest.mark.slow)],
)
def test_comparison_table_is_what_the_experiments_give(tool_name, monkeypatch, warm):
    for name in [name for name in os.environ if name.startswith(MEASURING)]:
        monkeypatch.delenv(name)
    path = PROJECT / "benchmarks" / "what_comes_back.py"
    specification = importlib.util.spec_from_file_location("what_comes_back", path)
    assert specification
    assert specification.loader
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    if tool_name == "treesnap":
        monkeypatch.setattr(module, "KILL_ATTEMPTS", sized(2, module.KILL_ATTEMPTS))
        monkeypatch.setattr(module, "MANY_FILES", KILLED_FILES)
    tool = next(tool for tool in module.TOOLS if tool.name == tool_name)
    if tool_name == "treesnap" and not IS_FULL:
        tool = forked(tool, warm)
    if not module.available(tool):
        pytest.skip(f"{tool.program} is not installed")
    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    rows = re.search(r"<!-- table: what_comes_back -->\n\n((?:\|.*\n)+)", readme)
    assert rows
    cells = [[cell.strip() for cell in row.split("|")] for row in rows[1].splitlines()]
    column = cells[0].index(tool_name)

    assert [f"| {row[1]} | {row[column]} |" for row in cells[2:]] == module.table([tool])[2:]
