"""Names that are not commands: typing errors, names of other tools, ``help`` and ``version``."""

import re
from pathlib import Path

import click
import pytest

import treesnap
from treesnap.cli.aliases import ALIASES, HINTS, OPTION_HINTS
from treesnap.cli.commands import COMMANDS
from treesnap.cli.group import snap as command_line
from treesnap.cli.main import execute

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("creat", "did you mean 'snap create'?"),
        ("crate", "did you mean 'snap create'?"),
        ("lst", "did you mean 'snap list' or 'snap ls'?"),
        ("unod", "did you mean 'snap undo'?"),
        ("stat", "did you mean 'snap stats' or 'snap status'?"),
        ("chek", "did you mean 'snap verify'?"),
        ("Status", "did you mean 'snap status'?"),
        ("xyzzy", "see 'snap help --all'"),
        ("init", "none is needed: the first 'snap create' makes the store"),
        ("rm", "'snap delete REF' deletes a snapshot; 'rm' removes files"),
        ("plan rn", "did you mean 'snap plan run'?"),
        ("plan rm", "see 'snap plan --help'"),
        ("remote push", "did you mean 'snap push'?"),
        ("remote lst", "did you mean 'snap remote list'?"),
    ],
)
def test_unknown_command_is_a_usage_error_that_says_what_to_type(unsaid_snap, typed, hint):
    result = unsaid_snap(*typed.split())

    name = typed.split()[-1]
    assert (result.code, result.out) == (2, "")
    assert result.err == f"snap: No such command '{name}'\nhint: {hint}\n"


@pytest.mark.parametrize("name", sorted(HINTS))
def test_name_that_could_delete_or_overwrite_only_says_what_to_type(snap, root, name):
    (root / "a").write_text("a")
    snap("create")
    (root / "a").unlink()

    result = snap(name, "latest", "--json")

    assert (result.code, result.json["code"]) == (2, "usage")
    assert result.json["hint"] == HINTS[name]
    assert list(root.iterdir()) == []
    assert len(snap("list").out.splitlines()) == 1


def test_hints_and_suggestions_name_commands_that_exist():
    known = {name for section in COMMANDS.values() for name in section}

    assert set(ALIASES.values()) <= known
    assert set(re.findall(r"'snap ([a-z]+)", " ".join(HINTS.values()))) <= known
    assert not known & (ALIASES.keys() | HINTS.keys())


@pytest.mark.parametrize(("command", "option"), sorted(OPTION_HINTS))
def test_option_that_another_command_stands_for_says_which(snap, unsaid_snap, command, option):
    hint = OPTION_HINTS[command, option]

    for typed in ([option, "disk"], [f"{option}=disk"]):
        result = unsaid_snap(command, *typed)
        assert (result.code, result.out) == (2, "")
        assert result.err == f"snap: No such option '{option}'\nhint: {hint}\n"
    meant = re.match("'snap ([a-z ]+) (--|[A-Z])", hint)[1]
    assert snap(*meant.split(), "--help").code == 0


def test_hint_begins_with_the_name_that_was_called(unsaid_snap):
    assert execute(["init"], "treesnap") == 2


def test_help_is_one_screen_and_names_the_way_to_all_commands(snap):
    short, whole = snap("--help").out, snap("help", "--all").out

    assert snap("help").out == short
    assert len(short.splitlines()) <= 40
    for section, commands in COMMANDS.items():
        for name in commands:
            line = rf"(?m)^  {name} +\S"
            assert re.search(line, whole)
            assert bool(re.search(line, short)) == (section == "Everyday")
    assert "  help --all  " in short
    assert "help --all" not in whole


@pytest.mark.parametrize("alias", sorted(ALIASES))
def test_alias_runs_its_command(snap, alias):
    assert snap(alias, "--help").out == snap(ALIASES[alias], "--help").out


def test_alias_takes_arguments_and_global_options(snap, root):
    (root / "a").write_text("one")

    assert snap("commit", "-m", "first", "a").code == 0
    assert snap("-q", "snapshots", "--json").json["snapshots"][0]["label"] == "first"
    assert snap("ls-files", "newest").out == "a\n"
    assert snap("dump", "newest", "a").out == "one"


def test_aliases_are_not_in_the_help(snap):
    assert not set(re.findall(r"^  (\S+)  ", snap("--help").out, re.MULTILINE)) & set(ALIASES)


@pytest.mark.parametrize(
    ("words", "same"),
    [
        ("help", "--help"),
        ("help restore", "restore --help"),
        ("help plan", "plan --help"),
        ("help plan run", "plan run --help"),
        ("plan help run", "plan run --help"),
        ("plan help", "plan --help"),
        ("help run", "run --help"),
        ("help help", "--help"),
        ("version", "--version"),
    ],
)
def test_help_and_version_are_commands_as_well(snap, words, same):
    result = snap(*words.split())

    assert (result.code, result.out) == (0, snap(*same.split()).out)


def test_version_as_a_command_is_the_version(snap):
    assert snap("version").out == f"treesnap {treesnap.__version__}\n"


def test_help_of_an_unknown_command_says_what_to_type(snap):
    result = snap("help", "creat")

    assert result.code == 2
    assert "did you mean 'snap create'?" in result.err


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("create --labl x", "--label"),
        ("restore latest --dryrun", "--dry-run"),
        ("list --jsn", "--json"),
        ("--stor x list", "--store"),
    ],
)
def test_misspelt_option_is_a_usage_error_that_names_the_closest(snap, words, meant):
    result = snap(*words.split())

    assert result.code == 2
    assert result.err.endswith(f"hint: did you mean '{meant}'?\n")


def test_unknown_option_that_resembles_none_leads_to_the_help(snap):
    result = snap("list", "--xyzzy")

    assert result.err == "snap: No such option '--xyzzy'\nhint: see 'snap list --help'\n"


def test_help_of_an_alias_is_that_of_its_command(snap):
    assert snap("help", "check").out == snap("verify", "--help").out


def test_names_of_other_tools_are_documented():
    table = REFERENCE.read_text().split("## Names from other tools")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.+?) \| (.+?) \|$", table, re.MULTILINE)
    documented = {
        name: command for names, command in rows for name in re.findall(r"`([a-z-]+)`", names)
    }

    assert {
        name: command.strip("`") for name, command in documented.items() if name in ALIASES
    } == {name: f"snap {command}" for name, command in ALIASES.items()}
    assert set(documented) == {*ALIASES, *HINTS}


def test_completion_follows_an_alias():
    with command_line.make_context("snap", ["check"], resilient_parsing=True) as context:
        name, command, _ = command_line.resolve_command(context, ["check"])

    assert name == "verify"
    assert isinstance(command, click.Command)
