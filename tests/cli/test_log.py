"""``snap log`` and ``snap`` alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

from terminal import shown_on_a_terminal
from treesnap.core.ops.history.steps import EventPhase

pytestmark = pytest.mark.sampled(3)


@pytest.fixture
def made(snap, root):
    """Three snapshots: two files, one of them changed, one removed."""
    (root / "plan").write_text("beans\n")
    (root / "photo").write_bytes(bytes(2048))
    ids = [snap("create", "-m", "first").id]
    (root / "plan").write_text("beans\npeas\n")
    ids.append(snap("create", "-m", "peas", "--tag", "season=spring").id)
    (root / "photo").unlink()
    ids.append(snap("create", "-m", "no photo", "--session", "s").id)
    return ids


def rows(outcome) -> list[list[str]]:
    """Returns the lines without date and time, as words."""
    return [line[22:].split() for line in outcome.out.splitlines()]


def test_the_log_says_what_each_snapshot_changed(snap, made):
    assert rows(snap("log")) == [
        [made[2][:12], "-1", "-2.0", "KiB", "no", "photo", "(s)"],
        [made[1][:12], "~1", "+5", "B", "peas", "season=spring"],
        [made[0][:12], "+2", "+2.0", "KiB", "first"],
    ]
    assert [line[0] for line in snap("log").out.splitlines()] == ["@", " ", " "]


def test_the_log_of_a_path_has_its_versions_and_patches(snap, root, made):
    (root / "plan").unlink()

    assert [row[0] for row in rows(snap("log", "plan"))] == [made[1][:12], made[0][:12]]
    patch = snap("log", "plan", "-p").out
    assert "+peas\n" in patch
    assert "new file mode" in patch
    assert rows(snap("log", "photo"))[0][-4:] == ["D", "no", "photo", "(s)"]
    assert snap("log", "-p").code == 2


def test_the_log_of_a_path_that_never_was_is_an_error(snap, root, made):
    refused = snap("log", "never")

    assert (refused.code, refused.out) == (5, "")
    assert "'never' exists neither now nor in a snapshot of this root" in refused.err
    assert "snap find PATTERN" in refused.err
    assert snap("log", "never", "--json").json["code"] == "path-not-found"
    (root / "never").write_text("not captured yet")
    assert (snap("log", "never").code, snap("log", "never").out) == (0, "")


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        (["-n", "1"], [2]),
        (["--grep", "PE.S"], [1]),
        (["--grep", "spring"], [1]),
        (["--session", "s"], [2]),
        (["--kind", "safety"], []),
        (["--since", "1h", "-n", "2"], [2, 1]),
        (["--since", "0s"], []),
    ],
)
def test_filters_choose_what_is_shown(snap, made, words, numbers):
    assert [row[0] for row in rows(snap("log", *words))] == [made[n][:12] for n in numbers]


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        (["-n", "1"], [2]),
        (["-n", "0"], []),
        (["--kind", "manual", "-n", "2"], [2, 1]),
        (["--kind", "safety"], []),
        (["--since", "1h"], [2, 1, 0]),
        (["--since", "0s"], []),
    ],
)
def test_a_list_takes_the_same_filters(snap, made, words, numbers):
    ids = [item["id"] for item in snap("list", *words, "--json").json["snapshots"]]

    assert ids == [made[n] for n in numbers]
    assert snap("list", "--since", "soon").code == 2


@pytest.mark.parametrize("words", [["--grep", "("], ["--since", "soon"], ["-n", "-1"]])
def test_wrong_filters_are_usage_errors(snap, made, words):
    assert snap("log", *words).code == 2


def test_the_log_as_json(snap, made):
    entries = snap("log", "plan", "--json").json["entries"]

    assert [entry["snapshot"]["id"] for entry in entries] == [made[1], made[0]]
    assert [entry["change"] for entry in entries] == ["modified", "added"]
    assert [entry["older_id"] for entry in entries] == [made[0], None]
    assert [entry["size_change_bytes"] for entry in entries] == [5, 6]


def test_the_log_says_what_undo_and_redo_would_do(snap, made):
    snap("restore", made[0])

    assert f"snap undo goes back to before restore {made[0][:12]}" in snap("log").err
    snap("undo")
    assert "snap redo goes back to before undo" in snap("log").err


def test_steps_of_an_agent_stand_below_their_prompt(snap, root, agent_step):
    agent_step(EventPhase.TURN, 1, prompt="plant beans")
    agent_step(EventPhase.PRE, 2, tool="Write", summary="bed")
    (root / "bed").write_text("beans")
    agent_step(EventPhase.PRE, 3, tool="Bash", summary="rm bed")
    (root / "bed").unlink()
    agent_step(EventPhase.END, 4)

    lines = snap("log").out.splitlines()

    assert lines[0] == "claude s-1"
    assert lines[1].startswith("  ")
    assert lines[1].endswith("plant beans")
    assert [line.split("  ")[-1] for line in lines[2:]] == [
        "end of the turn",
        "Bash: rm bed",
        "Write: bed",
    ]
    assert " -1 " in lines[3]
    assert " +1 " in lines[4]


def test_numbered_steps_of_a_loop_stand_below_their_session(snap, root):
    snap("create", "-m", "first", "--session", "no steps")
    for step, name in enumerate(["bed", "bean"]):
        snap("create", "-m", f"make {name}", "--session", "task-1", "--step", step)
        (root / name).write_text(name)
    snap("create", "--session", "task-2", "--step", "0", "--tag", "season=spring")

    lines = snap("log").out.splitlines()

    assert [line.split("  ")[-1].strip() for line in lines] == [
        "session task-2",
        "step 0: season=spring",
        "session task-1",
        "step 1: make bean",
        "step 0: make bed",
        "first (no steps)",
    ]
    assert [" +1 " in line for line in lines] == [False, False, False, True, True, False]


@pytest.mark.needs("exit codes")
def test_snapshots_of_a_plan_stand_below_their_steps(snap, root, tmp_path):
    (tmp_path / "plan.yaml").write_text(
        "name: tidy\nsteps:\n"
        "  - {name: dig, run: echo 1 > bed, checkpoint: true}\n"
        "  - {name: sow, run: echo 2 > bean}\n"
    )
    snap("create", "-m", "first")
    snap("plan", "run", tmp_path / "plan.yaml")
    plan = snap("list", "--json").json["snapshots"][0]["session"]

    lines = snap("log").out.splitlines()

    assert lines[0] == f"plan tidy {plan}"
    steps = [line for line in lines if line.startswith("  step ")]
    assert steps == ["  step 2: sow", "  step 1: dig"]
    at = lines.index(steps[1])
    assert [line.split("  ")[-1].strip() for line in lines[at + 1 :]] == [
        "after dig",
        "before dig",
        "first",
    ]
    assert [line.startswith("    ") for line in lines[at + 1 :]] == [True, True, False]
    assert " +1 " in lines[at + 2]
    found = [entry["plan_step"] for entry in snap("log", "--json").json["entries"]]
    assert found[-1] is None
    assert found[-2] == {"plan_id": plan, "plan": "tidy", "number": 1, "name": "dig"}
    assert found[-3] == {"plan_id": plan, "plan": "tidy", "number": 1, "name": None}


def test_the_log_says_what_is_missing(snap, root, made):
    snap("delete", made[1])

    assert snap("log").out.splitlines()[1] == "  (1 snapshot no longer there)"
    assert "no longer" not in snap("log", "--grep", "photo").out
    assert "\x1b[2m  (1 snapshot no longer there)\x1b[0m" in snap("log", "--color", "always").out
    assert "no longer" in snap("log", "photo").out
    assert snap("log", "--json").json["entries"][0]["gap"]["missing"] == 1


def test_a_label_that_was_given_later_counts(snap, made):
    snap("describe", made[1], "lentils")

    assert "lentils" in snap("log").out
    assert [row[0] for row in rows(snap("log", "--grep", "lentils"))] == [made[1][:12]]
    assert snap("log", "--grep", "^peas$").out == ""


def test_snap_alone_says_where_one_is_and_how_to_go_back(snap, root, made):
    (root / "plan").write_text("weeds")

    shown = snap()

    assert shown.code == 0
    for text in (str(root), made[2][:12], "1 path changed since", "M  plan", "restore latest"):
        assert text in shown.out
    document = snap("--json").json
    assert [item["id"] for item in document["snapshots"]] == made[::-1]
    assert document["since"] == made[2]
    assert [change["path"] for change in document["changes"]] == ["plan"]


def test_snap_alone_compares_with_what_was_restored(snap, root, made):
    snap("restore", made[0])
    at_rest = snap()
    assert "  2 files, 2.0 KiB\n" in at_rest.out
    (root / "plan").write_text("weeds")

    shown = snap()

    for outcome in (at_rest, shown):
        assert f"Restored to {made[0][:12]}" in outcome.out
        assert f"snap undo goes back to before restore {made[0][:12]}" in outcome.out
    assert f"Nothing changed since {made[0][:12]}" in at_rest.out
    assert "1 path changed since" in shown.out
    assert f"diff {made[0][:12]}" in shown.out
    assert f"restore {made[0][:12]}" in shown.out
    assert snap("--json").json["since"] == made[0]


def test_snap_alone_names_redo_after_an_undo(snap, root, made):
    (root / "plan").write_text("not saved")
    snap("restore", "latest")
    assert "snap undo goes back to before restore" in snap().out
    snap("undo")

    shown = snap().out

    assert "(before restore " in shown
    assert "snap redo goes back to before undo" in shown
    assert "snap undo" not in shown


def test_snap_alone_forgets_the_way_back_when_the_tree_is_saved(snap, root, made):
    snap("restore", made[0])
    snap("create")

    assert " goes back to " not in snap().out


def test_status_says_where_the_root_stands_if_that_is_not_latest(snap, root, made):
    snap("restore", made[0])

    moved = snap("status")

    assert f"since latest, {made[2][:12]}" in moved.err
    assert f"stands at {made[0][:12]}" in moved.err
    assert f"snap status {made[0][:12]}" in moved.err
    assert "stands at" not in snap("status", made[1]).err
    snap("restore", "latest")
    (root / "plan").write_text("weeds")
    assert snap("status").err == ""


def test_snap_alone_in_a_new_directory_names_the_first_commands(snap, root, store):
    shown = snap()

    assert (shown.code, "No snapshots of " in shown.out) == (0, True)
    assert "create -m" in shown.out
    assert not store.exists()


def on_a_terminal(words, root, environment, columns=80):
    """Returns what a terminal of so many columns receives from a command."""
    return shown_on_a_terminal(
        [sys.executable, "-m", "treesnap", *words],
        cwd=root,
        env={**environment, "COLUMNS": str(columns), "TERM": "xterm"},
        stderr=subprocess.DEVNULL,  # no progress
    ).decode()


@pytest.mark.parametrize("columns", [40, 80])
def test_a_terminal_gets_heads_and_relative_times_that_fit(
    environment, root, made, columns, snap, tmp_path
):
    long = "a very long name " * 6
    (tmp_path / "plan.yaml").write_text(
        f"name: {long}\nsteps:\n  - {{name: {long}, run: 'true'}}\n"
    )
    snap("plan", "run", tmp_path / "plan.yaml")
    snap("create", "--session", "s" * 100, "--step", "0")
    environment = {**environment, "SNAP_PAGER": "", "NO_COLOR": "1"}

    listed = on_a_terminal(["list"], root, environment, columns)
    logged = on_a_terminal(["log"], root, environment, columns)

    assert listed.split()[:2] == ["ID", "WHEN"]
    for text in (listed, logged):
        assert made[0][:12] in text
        assert " ago" in text or "just now" in text
        assert max(map(len, text.splitlines())) <= columns
        assert "\x1b" not in text


def test_labels_get_the_room_that_counts_do_not_need(environment, root, made, snap):
    label = "a label of forty letters, or of a few more"
    snap("create", "-m", label)
    environment = {**environment, "SNAP_PAGER": "", "NO_COLOR": "1"}

    logged = on_a_terminal(["log"], root, environment)

    assert label[:30] in logged.splitlines()[0]
    assert {
        line.index(made[n][:12])
        for line in logged.splitlines()
        for n in (0, 1)
        if made[n][:12] in line
    } == {logged.splitlines()[1].index(made[2][:12])}


def test_a_terminal_gets_colours_and_a_pager(environment, root, made):
    paged = {**environment, "SNAP_PAGER": "sed -e 's/^/| /'"}

    text = on_a_terminal(["log"], root, paged)

    assert "\x1b[32m+2\x1b[0m" in text
    assert all(line.startswith("| ") for line in text.splitlines())


def test_without_the_pager_everything_is_printed(environment, root, made):
    for pager in ("/does/not/exist", "", "cat"):
        assert "first" in on_a_terminal(["log"], root, {**environment, "SNAP_PAGER": pager})


def test_a_person_who_leaves_the_pager_ends_the_command(environment, root, made):
    assert on_a_terminal(["log"], root, {**environment, "SNAP_PAGER": "head -n 1"}).count("\n") == 1


def test_colours_can_be_asked_for_in_a_pipe(snap, made):
    assert "\x1b[32m+2\x1b[0m" in snap("log", "--color", "always").out
    assert "\x1b" not in snap("log").out


def test_a_root_without_snapshots_says_so(snap, root, tmp_path):
    (tmp_path / "other").mkdir()
    snap("-C", str(tmp_path / "other"), "create")

    assert snap("log").err.startswith(f"No snapshots of {root} in ")
    for words in (["diff"], ["restore", "@2h"], ["show", "f00"]):
        assert "hint: 'snap create' takes the first one" in snap(*words).err
    snap("create")
    assert snap("log", "--grep", "x").err.startswith("No such snapshots of ")
    assert "takes the first one" not in snap("restore", "@2h").err
