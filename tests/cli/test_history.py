"""``snap list``, ``show``, ``delete``, ``pin`` and ``unpin``."""

import re

import pytest

SNAPSHOT_FIELDS = {"id", "label", "name", "created_at", "root_hash", "complete", "pinned", "kind"}


@pytest.fixture
def history(snap, root):
    """Three snapshots; their ids, newest first."""
    ids = []
    for number, words in enumerate(
        [["-m", "first"], ["--name", "v2", "--session", "s", "--step", "2"], ["--tag", "k=v"]]
    ):
        (root / "a").write_text(f"content {number}")
        ids.append(snap("create", *words).id)
    return ids[::-1]


def test_list_is_a_table_newest_first(snap, history):
    result = snap("list")

    lines = result.out.splitlines()
    assert [line.split()[0] for line in lines] == [identity[:12] for identity in history]
    pattern = r"[0-9a-f]{12}  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d +\+\d+ B  manual  --  (.*)"
    titles = [match and match[1] for line in lines for match in [re.fullmatch(pattern, line)]]
    assert titles == ["k=v", "[v2] (s step 2)", "first"]


def test_list_as_json(snap, history):
    document = snap("list", "--json").json

    assert document["schema"] == "treesnap.list/1"
    assert [item["id"] for item in document["snapshots"]] == history
    assert all(
        SNAPSHOT_FIELDS | {"session", "step", "tags"} <= set(item) for item in document["snapshots"]
    )
    assert document["snapshots"][0]["created_at"].endswith("Z")


@pytest.mark.parametrize(
    ("words", "positions"),
    [
        (["--session", "s"], [1]),
        (["--tag", "k"], [0]),
        (["--tag", "k=v"], [0]),
        (["--tag", "x"], []),
    ],
)
def test_list_is_filtered(snap, history, words, positions):
    document = snap("list", "--json", *words).json

    assert [item["id"] for item in document["snapshots"]] == [history[at] for at in positions]


def test_list_of_nothing_says_so(unsaid_snap, root, default_store):
    result = unsaid_snap("list")

    assert (result.code, result.out, result.err) == (
        0,
        "",
        f"No snapshots of {root} in {default_store}\n",
    )


def test_list_all_shows_the_roots(snap, run_snap, history, tmp_path):
    (tmp_path / "other").mkdir()
    run_snap("-C", "other", "create", cwd=tmp_path)

    result = snap("list", "--all")

    assert len(result.out.splitlines()) == 4
    assert str(tmp_path / "other") in result.out
    assert len(snap("list").out.splitlines()) == 3


def test_label_cannot_act_on_the_terminal(snap):
    snap("create", "-m", "red \x1b[31m\nline")

    assert "red \\x1b[31m\\nline" in snap("list").out
    assert snap("list", "--json").json["snapshots"][0]["label"] == "red \x1b[31m\nline"


def test_show_prints_a_fact_a_line(snap, history):
    result = snap("show", "v2")

    facts = dict(re.split(r":\s+", line, maxsplit=1) for line in result.out.splitlines())
    assert facts["id"] == history[1]
    assert (facts["session"], facts["step"], facts["name"]) == ("s", "2", "v2")
    assert (facts["pinned"], facts["complete"]) == ("no", "yes")
    assert facts["holds"] == "1 file, 0 directories, 0 links and special files, 9 B"


def test_show_as_json(snap, history, root):
    document = snap("show", "latest", "--json").json

    assert document["schema"] == "treesnap.show/1"
    assert document["id"] == history[0]
    assert document["root"] == str(root)
    assert document["totals"]["files"] == 1
    assert document["skipped"] == []
    assert document["scope"] is None


def test_show_lists_what_is_not_held_and_why(snap, root):
    (root / "b.log").touch()
    (root / ".snapignore").write_text("*.log\n")
    snap("create")

    text = snap("show", "latest").out
    document = snap("show", "latest", "--json").json

    assert "not held:  b.log (excluded)" in text
    assert document["skipped"] == [{"path": "b.log", "reason": "excluded"}]


def test_show_names_the_scope(snap, root):
    (root / "a").touch()
    snap("create", "a", "gone", "--step", "4", "--allow-absent")

    assert "scope:     a\nscope:     gone\n" in snap("show", "newest").out
    assert snap("list").out.endswith("  --  (step 4) (only a, gone)\n")


@pytest.mark.parametrize(
    ("ref", "position"), [("latest", 0), ("latest~1", 1), ("latest~2", 2), ("v2", 1)]
)
def test_ref_names_a_snapshot(snap, history, ref, position):
    assert snap("show", ref, "--json").json["id"] == history[position]


def test_ref_is_an_id_or_its_unique_beginning(snap, history):
    for identity in history:
        assert snap("show", identity, "--json").json["id"] == identity
        assert snap("show", identity[:12], "--json").json["id"] == identity


@pytest.mark.parametrize("words", [["show"], ["ls"], ["pin"], ["unpin"], ["delete"]])
def test_step_is_a_ref_within_a_session(snap, history, words):
    assert snap(*words, "step:2", "--session", "s").code == 0


def test_step_without_its_session_is_no_ref(snap, history):
    assert snap("show", "step:2", "--session", "other").code == 5


def test_delete_prints_the_ids_and_how_to_get_the_space(snap, history):
    result = snap("delete", "latest~1", "latest")

    assert result.out.split() == [history[1], history[0]]
    assert result.err == "To free their space: snap gc\n"
    assert len(snap("list").out.splitlines()) == 1


def test_delete_as_json(snap, history):
    document = snap("delete", "v2", "--json").json

    assert document["schema"] == "treesnap.delete/1"
    assert [item["id"] for item in document["snapshots"]] == [history[1]]


def test_delete_of_one_that_does_not_exist_deletes_none(snap, history):
    result = snap("delete", "latest", "nosuch")

    assert result.code == 5
    assert len(snap("list").out.splitlines()) == 3


def test_pinned_snapshot_is_not_deleted(snap, history):
    pinned = snap("pin", "v2")
    refused = snap("delete", "v2", "--json")
    listed = snap("list").out.splitlines()[1]
    unpinned = snap("unpin", "v2")

    assert pinned.id == unpinned.id == history[1]
    assert (refused.code, refused.json["code"]) == (3, "pinned")
    assert "  P-  " in listed
    assert snap("delete", "v2").code == 0


@pytest.mark.parametrize(("command", "pinned"), [("pin", True), ("unpin", False)])
def test_pin_as_json(snap, history, command, pinned):
    document = snap(command, "latest", "--json").json

    assert document["schema"] == f"treesnap.{command}/1"
    assert (document["id"], document["pinned"]) == (history[0], pinned)


def test_list_says_what_to_do_about_a_damaged_snapshot(snap, store):
    made = snap("create").id
    (path,) = store.glob(f"snapshots/*/*-{made}")
    path.chmod(0o600)
    path.write_bytes(b"damaged")

    listed = snap("list")

    assert listed.code == 0
    assert listed.err == (
        f"Snapshot {made[:12]} is damaged and cannot be listed\n"
        "To repair or move away what is damaged: snap verify --repair\n"
        "To delete it: snap delete ID\n"
    )
    assert snap("list", "--json").json["damaged"] == [made]
