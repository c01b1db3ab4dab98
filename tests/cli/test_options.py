"""Global options: before and after the command, and what paths mean with them."""

import os

import pytest

from treesnap.cli.command import command_of_click
from treesnap.cli.declarations import command, option
from treesnap.cli.invocation import Invocation


@pytest.mark.parametrize("words", [["--json", "list"], ["list", "--json"]])
def test_json_is_understood_before_and_after_the_command(unsaid_snap, words):
    assert unsaid_snap(*words).json == {
        "schema": "treesnap.list/1",
        "snapshots": [],
        "damaged": [],
        "newer": [],
        "gaps": [],
    }


@pytest.mark.parametrize("words", [["-q", "create"], ["create", "-q"], ["create", "--quiet"]])
def test_quiet_silences_remarks_and_leaves_the_result(snap, words):
    result = snap(*words)

    assert result.err == ""
    assert result.id


def test_quiet_does_not_silence_errors(snap):
    assert snap("-q", "show", "nosuch").err != ""


def test_remarks_go_to_standard_error(snap):
    result = snap("create")

    assert result.id
    assert "Captured" in result.err


@pytest.mark.parametrize("place", ["before", "after"])
def test_root_is_given_with_c(run_snap, root, tmp_path, place):
    (root / "a").write_text("a")
    where = ["-C", "root"]

    words = [*where, "create"] if place == "before" else ["create", *where]
    result = run_snap(*words, "--json", cwd=tmp_path)

    assert result.json["snapshot"]["root"] == str(root)


def test_paths_are_relative_to_the_directory_of_c(run_snap, snap, root, tmp_path):
    (root / "a").write_text("a")
    snap("create")

    result = run_snap("-C", "root", "cat", "latest", "a", cwd=tmp_path)

    assert result.out == "a"


def test_paths_are_relative_to_the_current_directory_without_c(snap, root):
    (root / "below").mkdir()
    (root / "below" / "a").write_text("inner")
    (root / "a").write_text("outer")
    snap("create")

    assert snap("cat", "latest", "a", cwd=root / "below").out == "inner"
    assert snap("cat", "latest", "../a", cwd=root / "below").out == "outer"


def test_root_is_the_nearest_registered_directory_above(snap, root):
    (root / "below").mkdir()
    snap("create")

    result = snap("create", "--json", cwd=root / "below")

    assert result.json["snapshot"]["root"] == str(root)


def test_links_on_the_way_to_the_root_are_followed(run_snap, snap, root, tmp_path):
    (root / "a").write_text("a")
    (tmp_path / "link").symlink_to(root)
    snap("create")

    assert run_snap("cat", "latest", tmp_path / "link" / "a", cwd=root).out == "a"
    assert run_snap("-C", tmp_path / "link", "cat", "latest", "a", cwd=tmp_path).out == "a"
    assert run_snap("ls", "latest", tmp_path / "link", cwd=root).out == "a\n"


def test_path_outside_the_root_is_a_usage_error(snap):
    snap("create")

    result = snap("cat", "latest", "../a", "--json")

    assert (result.code, result.json["code"]) == (2, "invalid-argument")


def test_store_is_given_and_relative_to_the_current_directory(run_snap, root, tmp_path):
    run_snap("--store", "elsewhere", "-C", "root", "create", cwd=tmp_path)

    assert (tmp_path / "elsewhere").is_dir()
    assert run_snap("list", "-C", "root", "--store", "elsewhere", "-q", cwd=tmp_path).out
    assert run_snap("list", "-C", "root", "-q", cwd=tmp_path).out == ""


def test_store_is_given_by_the_environment(snap, store):
    snap("create")

    assert store.is_dir()


def test_store_inside_the_root_is_not_captured(snap, root):
    (root / "sub").mkdir()

    result = snap("--store", "sub/store", "create", "--json")

    assert result.code == 0
    assert {"path": "sub/store", "reason": "store"} in result.json["skipped"]


@pytest.mark.parametrize("option", ["-C", "--store"])
def test_empty_directory_is_a_usage_error(snap, option):
    assert snap(option, "", "list").code == 2


@pytest.mark.parametrize("seconds", ["-1", "soon"])
def test_wait_is_a_number_of_seconds(unsaid_snap, seconds):
    assert unsaid_snap("--wait", seconds, "list").code == 2
    assert unsaid_snap("--wait", "0.5", "list").code == 0


def test_option_after_the_command_wins(run_snap, root, tmp_path):
    (tmp_path / "other").mkdir()

    result = run_snap("-C", "other", "create", "-C", "root", "--json", cwd=tmp_path)

    assert result.json["snapshot"]["root"] == str(root)


def test_current_directory_that_is_gone_is_not_found(environment, tmp_path):
    import subprocess
    import sys

    gone = tmp_path / "gone"
    gone.mkdir()
    program = "import os, sys; os.rmdir(os.getcwd()); from treesnap.cli.main import execute; "

    result = subprocess.run(
        [sys.executable, "-P", "-c", program + "sys.exit(execute(['list', '--json']))"],
        cwd=gone,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 5
    assert '"current-directory-gone"' in result.stdout


def test_root_that_is_gone_is_restored_with_c(run_snap, snap, root, tmp_path):
    (root / "a").write_text("a")
    snap("create")
    os.unlink(root / "a")
    root.rmdir()

    result = run_snap("-C", "root", "restore", "latest", cwd=tmp_path)

    assert result.code == 0, result.err
    assert (root / "a").read_text() == "a"


@pytest.mark.parametrize(
    ("words", "option", "meant"),
    [
        (["show", "latest", "--session", "--json"], "--session", "--session=--json"),
        (["create", "-m", "--json"], "-m", "-m--json"),
        (["create", "-qm", "--json"], "-m", "-m--json"),
        (["create", "--label", "-q"], "--label", "--label=-q"),
        (["--store", "-C", "list"], "--store", "--store=-C"),
        (["list", "--store", "--json"], "--store", "--store=--json"),
    ],
)
def test_an_option_is_not_taken_as_the_value_of_another_one(
    unsaid_snap, tmp_path, words, option, meant
):
    before = sorted(tmp_path.rglob("*"))

    result = unsaid_snap(*words)

    assert result.code == 2
    assert f"Option '{option}' requires an argument" in result.err + result.out
    assert meant in result.err + result.out
    assert sorted(tmp_path.rglob("*")) == before


def test_an_option_that_is_joined_or_follows_two_dashes_is_a_value(snap):
    assert snap("create", "-m--json").id
    assert snap("create", "--label=-q").id
    assert [item["label"] for item in snap("list", "--json").json["snapshots"]] == ["-q", "--json"]


@pytest.mark.parametrize("ref", ["latest~\u0661", "step:\u0661", "latest:manual~\u0661"])
def test_digits_of_other_scripts_are_no_numbers_in_a_ref(snap, root, ref):
    snap("create")
    (root / "new").touch()
    snap("create")

    assert snap("show", ref).code == 5


@pytest.mark.parametrize(
    ("words", "tags"),
    [(["--hot", "--mood", "calm"], {"hot": "true", "mood": "calm"}), ([], {})],
)
def test_an_option_that_is_a_tag_is_among_the_tags_and_no_parameter(words, tags):
    @command("tagged", examples=[])
    @option("--hot", is_tag=True, is_flag=True)
    @option("--mood", is_tag=True)
    def tagged(invocation: Invocation) -> None:
        del invocation

    invocation = Invocation("snap")
    command_of_click(tagged).main(words, standalone_mode=False, obj=invocation)

    assert invocation.tags == tags
