"""``snap config``: settings of the store and of one root, in TOML files."""

from __future__ import annotations

import errno
import os
import re
import tomllib
from pathlib import Path

import pytest

import treesnap
from treesnap.core.model.errors import StorageFull
from treesnap.core.ops.context import context_at
from treesnap.core.ops.maintenance.config import KEYS
from treesnap.core.ops.user_settings import is_of_user
from treesnap.testing.doubles import Fault, FaultyFileSystem, Kind

REFERENCE = Path(__file__).parents[2] / "docs/reference/cli.md"


def documented_defaults() -> dict[str, str | None]:
    """What the table of settings says, in the order in which they are shown."""
    text = REFERENCE.read_text().partition("| key | value | default | meaning |\n")[2]
    found: dict[str, str | None] = {}
    for row in text.partition("\n\n")[0].splitlines()[1:]:
        keys, _, defaults, _ = row.strip("| ").split(" | ", 3)
        values = [
            None if value in {"none", "no limit"} else value.strip("`")
            for value in defaults.split(" · ")
        ]
        found |= zip(re.findall("`([^`]+)`", keys), values, strict=True)
    assert all(is_of_user(key) for key in found.keys() - KEYS.keys())
    return {key: found[key] for key in KEYS}


DEFAULTS = documented_defaults()


def settings(snap) -> dict[str, tuple[str | None, str]]:
    """What holds, as the command says."""
    document = snap("config", "--json").json
    return {item["key"]: (item["value"], item["source"]) for item in document["settings"]}


def root_file(store: Path) -> Path:
    (path,) = store.glob("roots/*/config.toml")
    return path


def test_without_a_store_the_defaults_hold_and_nothing_is_made(unsaid_snap, default_store):
    assert settings(unsaid_snap) == {key: (value, "default") for key, value in DEFAULTS.items()}
    assert not default_store.exists()


def test_shows_a_table(unsaid_snap):
    rows = unsaid_snap("config").out.splitlines()

    assert [row.split() for row in rows] == [
        [key, value or "-", "default"] for key, value in DEFAULTS.items()
    ]


@pytest.mark.parametrize(
    ("key", "value", "stored"),
    [
        ("automatic", "false", {"automatic": False}),
        ("max-size", "1.5G", {"max-size": "1.5G"}),
        ("keep.last", "7", {"keep": {"last": 7}}),
        ("keep.within", "2w", {"keep": {"within": "2w"}}),
        ("keep.tags", "release,gate=passed", {"keep": {"tags": ["release", "gate=passed"]}}),
        ("maker.metadata", "true", {"maker": {"metadata": True}}),
    ],
)
def test_a_setting_of_the_store_is_kept_in_its_file(snap, store, key, value, stored):
    assert snap("config", key, value).out == ""

    assert tomllib.loads((store / "config.toml").read_text()) == stored
    expected = "1536M" if value == "1.5G" else value
    assert snap("config", key).out == f"{expected}\n"
    assert settings(snap)[key] == (expected, "store")


def test_the_root_wins_over_the_store(snap, run_snap, root, store, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    snap("config", "keep.last", "7")
    snap("config", "--root", "keep.last", "9")

    assert settings(snap)["keep.last"] == ("9", "root")
    assert run_snap("config", "keep.last", cwd=other).out == "7\n"
    assert tomllib.loads(root_file(store).read_text()) == {"keep": {"last": 9}}


def test_unset_takes_a_setting_back(snap, store):
    snap("config", "keep.last", "7")
    snap("config", "keep.daily", "3")

    snap("config", "--unset", "keep.last")
    assert settings(snap)["keep.last"] == ("50", "default")
    assert settings(snap)["keep.daily"] == ("3", "store")

    snap("config", "--unset", "keep.daily")
    assert not (store / "config.toml").exists()
    assert snap("config", "--unset", "keep.daily").code == 0


def test_what_a_person_wrote_around_a_setting_stays(snap, store):
    snap("config", "keep.last", "7")
    (store / "config.toml").write_text("# ours\n[keep]\nlast = 7 # a week\ndaily = 1\n")

    snap("config", "keep.daily", "2")

    assert (store / "config.toml").read_text() == "# ours\n[keep]\nlast = 7 # a week\ndaily = 2\n"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("keep.forever", "1"), "no setting 'keep.forever'"),
        (("keep.last", "many"), "'many' is not a whole number"),
        (("keep.last", "-1"), "A number must be a whole one from 0"),
        (("--root", "keep.daily", "-10"), "A number must be a whole one from 0"),
        (("keep.last", "--", "-1"), "'-1' is not a whole number"),
        (("keep.last", "9" * 5000), "is not a whole number"),
        (("keep.last", "1000000001"), "is not a whole number"),
        (("keep.last", "10000000001"), "is not a whole number"),
        (("max-size", "big"), "'big' is not of the form"),
        (("keep.within", "soon"), "'soon' is not of the form"),
        (("automatic", "perhaps"), "neither 'true' nor 'false'"),
        (("--unset",), "setting to change is not named"),
        (("--unset", "keep.last", "3"), "either given a value or unset"),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_is_written(snap, store, words, why):
    result = snap("config", *words)

    assert result.code == 2
    assert why in result.err
    assert not store.exists()


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "text",
    [
        "keep = [",
        "[keep]\nlast = 'many'",
        "[keep]\nlast = -1",
        "[keep]\nlast = true",
        "[keep]\ntags = [1]",
        "keep = 3",
        "[keep.last]\nnewest = 3",
        "max-size = 1.5",
        "surprise = 1",
        "automatic = 'yes'",
        "\x00",
        b"\xff",
        "a = " + "[" * 20_000,
        "keep.last = " + "9" * 5000,
        "keep.last = 0x" + "f" * 5000,
        '"keep.last" = 3',
        "[keep]\nlast = 3\n" + "#" * 70_000,
    ],
    ids=lambda text: str(text[:20]),
)
def test_a_file_that_makes_no_sense_is_named_and_removes_and_limits_nothing(
    snap, store, root, text
):
    snap("config", "keep.last", "7")
    content = text if isinstance(text, bytes) else text.encode()
    (store / "config.toml").write_bytes(content)

    for words in [("config",), ("config", "keep.last", "3")]:
        result = snap(*words)
        assert result.code == 2
        assert "config.toml" in result.err
    assert snap("config", "--json").json["code"] == "invalid-config"
    assert (store / "config.toml").read_bytes() == content

    (root / "file").write_text("content")
    result = snap("create")
    assert result.code == 0
    assert "config.toml" in result.err


@pytest.mark.parametrize("kind", ["directory", "link", "pipe", "dangling link"])
def test_what_is_no_file_is_named_and_removes_and_limits_nothing(snap, store, root, kind):
    (root / "file").write_text("content")
    snap("create")
    path = store / "config.toml"
    (root / "elsewhere.toml").write_text("max-size = 0")
    make = {
        "directory": path.mkdir,
        "link": lambda: path.symlink_to(root / "elsewhere.toml"),
        "dangling link": lambda: path.symlink_to("nowhere"),
        "pipe": lambda: os.mkfifo(path),
    }
    make[kind]()

    for words in [("config",), ("config", "keep.last", "3"), ("config", "--unset", "keep.last")]:
        result = snap(*words)
        assert result.code == 2
        assert "config.toml" in result.err
    (root / "file").write_text("more")
    result = snap("create")
    assert result.code == 0
    assert "config.toml" in result.err


def test_a_size_may_be_a_number_in_the_file(snap, store):
    snap("config", "keep.last", "7")
    (store / "config.toml").write_text("max-size = 1048576\n")

    assert snap("config", "max-size").out == "1M\n"


def test_a_limit_of_nothing_is_shown_as_it_is_given(snap):
    assert snap("config", "max-size", "0").code == 0

    assert snap("config", "max-size").out == "0\n"


def held(snap) -> set[str]:
    return set(snap("ls", "latest").out.split())


def test_what_the_settings_exclude_is_captured_in_no_root(snap, root):
    for name in ("notes.pyc", "notes", "a,b"):
        (root / name).write_text("x")
    snap("config", "exclude", "*.pyc,cache/")

    snap("create")
    assert held(snap) == {"notes", "a,b"}
    snap("create", "--exclude", "a,b")
    assert held(snap) == {"notes"}
    snap("config", "--root", "exclude", "notes")
    snap("create")
    assert held(snap) == {"notes.pyc", "a,b"}
    assert snap("restore", "latest~1").code == 0
    assert (root / "notes.pyc").exists()


def test_a_list_in_the_file_may_have_patterns_with_a_comma(snap, root, store):
    (root / "a,b").write_text("x")
    (root / "c").write_text("x")
    snap("create")
    (store / "config.toml").write_text('exclude = ["a,b"]\n')

    snap("create")

    assert held(snap) == {"c"}


@pytest.mark.parametrize("text", ["exclude = ['/']", "exclude = [1]", "exclude = 'x'"])
def test_patterns_that_make_no_sense_are_named_and_exclude_nothing(snap, root, store, text):
    (root / "one").write_text("x")
    snap("create")
    (store / "config.toml").write_text(text + "\n")

    result = snap("create")

    assert (result.code, "config.toml" in result.err) == (0, True)
    assert held(snap) == {"one"}
    assert snap("config", "exclude", "/").code == 2


@pytest.mark.parametrize("key", ["exclude", "keep.tags", "diff.\udcff"])
def test_settings_that_are_not_utf_8_are_refused(snap, key):
    result = snap("config", key, "cat" if key.startswith("diff") else "\udcff")

    assert result.code == 2
    assert "not UTF-8" in result.err


def test_settings_that_could_not_be_read_again_are_not_written(snap, store):
    assert snap("config", "keep.last", "3").code == 0
    before = (store / "config.toml").read_text()

    result = snap("config", "exclude", ",".join(f"{number:0200}" for number in range(350)))

    assert result.code == 2
    assert "would be larger than 64.0 KiB" in result.err
    assert (store / "config.toml").read_text() == before
    assert snap("config", "keep.last").out == "3\n"


def test_a_setting_for_which_there_is_no_room_is_said_to_be_changed_not_read(snap, root, store):
    snap("create")
    full = Fault(errno=errno.ENOSPC, kinds=frozenset({Kind.WRITE}), lasting=True)
    context = context_at(root=str(root), store_path=str(store), fs=FaultyFileSystem(full))

    with pytest.raises(StorageFull, match="Could not change a setting"):
        treesnap.Handle(context).config("keep.last", "9")


def test_the_table_is_aligned_whatever_is_in_it(snap):
    snap("config", "checkpoints.git", "true")
    snap("config", "exclude", "a/very/long/pattern,another one")

    lines = snap("config").out.splitlines()

    value, source = (lines[0].index(word) for word in ("true", "default"))
    assert {line[value - 2 : value] for line in lines} == {"  "}
    assert {line[source - 2 : source] for line in lines} == {"  "}
    assert {line[source:] for line in lines} == {"default", "store"}


def test_the_refusal_of_a_store_says_how_it_is_named_as_safe(snap, store, environment):
    environment["XDG_CONFIG_HOME"] = f"{environment['HOME']}/configuration"
    snap("create")
    store.chmod(0o770)

    refused = snap("list")

    assert refused.code == 3
    assert "'snap config safe-directories DIR'" in refused.err
    assert snap("config", "safe-directories", store).code == 0
    assert snap("list").code == 0
    assert f"safe-directories  {store}" in snap("config").out
