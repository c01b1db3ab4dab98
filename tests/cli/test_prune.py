"""``snap prune``: removes what no rule keeps."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from treesnap.cli.parameters import DURATION, SIZE, ValueKind
from treesnap.core.model.errors import InvalidArgument
from treesnap.core.ops.context import context_at

pytestmark = pytest.mark.sampled(3)


@pytest.fixture
def history(snap, root: Path) -> list[str]:
    """Four snapshots by hand and the safety snapshots of two restores, newest first."""
    ids = []
    for number in range(4):
        (root / "file").write_bytes(bytes([number]) * 50_000)
        ids.append(snap("create", "--label", f"number {number}").id)
    snap("restore", ids[0])
    snap("restore", ids[1])
    return [item["id"] for item in snap("list", "--json").json["snapshots"]]


def ids_of(snap) -> list[str]:
    return [item["id"] for item in snap("list", "--json").json["snapshots"]]


def test_a_dry_run_shows_what_goes_and_why_and_removes_nothing(snap, history):
    result = snap("prune", "--keep-last", "2", "--dry-run")

    rows = result.out.splitlines()
    assert result.code == 0
    assert [row.split()[0] for row in rows[:-1]] == [*["keep"] * 4, *["would"] * 2]
    assert rows[0].split()[1:3] == ["last,", "undo"]
    assert rows[-1] == "2 snapshots would be removed, 4 kept"
    assert ids_of(snap) == history


def test_removes_what_no_rule_keeps(snap, history):
    result = snap("prune", "--keep-last", "2")

    assert result.code == 0
    assert "2 snapshots removed, 4 kept" in result.out
    assert "snap gc" in result.err
    assert ids_of(snap) == history[:4]
    assert snap("gc", "--json").json["removed_objects"] > 0
    assert snap("verify", "--read-data").code == 0


def test_without_a_rule_removes_nothing_that_was_made_by_hand(snap, history):
    document = snap("prune", "--json").json

    assert document["removed"] == []
    reasons = {item["kind"]: item["reasons"] for item in document["kept"]}
    assert reasons["manual"] == ["manual"]
    assert "last" in reasons["safety"]


class TestNothingRemoved:
    """Each says why, and what to do."""

    def test_without_a_rule(self, snap, history):
        result = snap("prune", "--dry-run")

        *_, why, advice = result.err.splitlines()
        assert why == (
            "No snapshot would be removed: 2 are kept by the rules, "
            "4 are made by hand (the rules leave these alone)"
        )
        assert advice.endswith("by hand too: snap prune --keep-last 10 --dry-run")

    def test_with_rules_that_keep_everything(self, snap, history):
        snap("pin", history[-1])

        result = snap("prune", "--keep-last", "10")

        why, advice = result.err.splitlines()
        assert why == "No snapshot was removed: 5 are kept by the rules, 1 is pinned"
        assert advice.endswith("to remove one snapshot: snap delete REF")

    def test_of_a_session_that_has_none(self, snap, history):
        result = snap("prune", "--session", "absent", "--keep-last", "1")

        why, advice = result.err.splitlines()
        assert why == "No snapshot was removed: 6 are of another session"
        assert advice.endswith(": snap list")


class TestConfiguredPolicy:
    @pytest.fixture
    def automatic(self, snap, root: Path) -> list[str]:
        """More automatic snapshots than the default policy keeps of one hour, oldest first."""
        snap("config", "automatic", "false")
        ids = []
        for number in range(52):
            (root / "file").write_text(str(number))
            ids.append(snap("create", "--automatic").id)
        return ids

    def test_decides_where_no_rule_is_given(self, snap, automatic):
        snap("config", "keep.last", "1000")

        result = snap("prune", "--json")

        assert result.json["removed"] == []
        assert len(ids_of(snap)) == len(automatic)
        assert result.json["policy"] == {
            "source": "settings",
            "last": 1000,
            "hourly": 24,
            "daily": 14,
            "weekly": 8,
        }

    def test_keeps_less_too_and_is_named(self, snap, automatic):
        for name in ("last", "hourly", "daily", "weekly"):
            snap("config", f"keep.{name}", "3" if name == "last" else "0", "--root")

        result = snap("prune")

        assert ids_of(snap) == automatic[:-4:-1]
        assert "The rules are of 'snap config': keep.last 3" in result.err

    def test_is_the_default_where_nothing_is_set(self, snap, automatic):
        result = snap("prune", "--dry-run")

        assert "2 snapshots would be removed" in result.out
        assert "The rules are the default ones: keep.last 50, keep.hourly 24" in result.err

    @pytest.mark.parametrize("where", ["store", "root"])
    def test_that_cannot_be_read_removes_nothing(self, snap, root, store, automatic, where):
        place = store if where == "store" else next(store.glob("roots/*/"))
        (place / "config.toml").write_text("keep = {last = 'all'}")

        for options in ((), ("--keep-last", "1"), ("--max-size", "1")):
            result = snap("prune", *options, "--json")

            assert result.code == 2
            assert result.json["code"] == "invalid-config"
            assert "removed" not in result.json
            assert len(list(store.glob("snapshots/*/*"))) == len(automatic)


def test_rules_that_are_given_are_shown(snap, history):
    document = snap("prune", "--keep-within", "2h", "--keep-tag", "a", "--dry-run", "--json").json

    assert document["policy"] == {"source": "given", "within_s": 7200, "tags": ["a"]}


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "rules",
    [
        ("--keep-last", "0"),
        ("--keep-yearly", "0", "--keep-daily", "0"),
        ("--keep-within", "0s", "--max-size", "1G"),
        ("--keep-tag", "of-no-snapshot"),
        ("--keep-tag", "of-no-snapshot", "--keep-daily", "0"),
    ],
)
def test_rules_that_keep_nothing_are_refused(snap, history, rules):
    before = ids_of(snap)

    for option in ((), ("--dry-run",)):
        result = snap("prune", *rules, *option)
        assert result.code == 2
        assert "give one of them a number of at least 1" in result.err

    assert ids_of(snap) == before


def test_a_rule_of_zero_beside_one_that_keeps_something_is_none(snap, history):
    assert snap("prune", "--keep-hourly", "0", "--keep-last", "1").code == 0

    assert history[0] in ids_of(snap)


def test_pinned_and_named_ones_stay(snap, history, root: Path):
    snap("pin", history[-1])
    (root / "file").write_text("named")
    named = snap("create", "--name", "keep-me").id

    document = snap("prune", "--keep-last", "1", "--json").json

    next_undo = history[0]
    assert {item["id"] for item in document["kept"]} == {history[-1], named, next_undo}
    assert ids_of(snap) == [named, next_undo, history[-1]]


def test_of_one_session_only(snap, root: Path):
    for number, session in enumerate(["one", "two", "one"]):
        (root / "file").write_text(str(number))
        snap("create", "--session", session)

    document = snap("prune", "--session", "one", "--keep-last", "0", "--json").json

    assert [item["session"] for item in document["removed"]] == ["one", "one"]
    assert [item["reasons"] for item in document["kept"]] == [["another session"]]


class TestMaxSize:
    def test_the_oldest_go_until_the_rest_fits(self, snap, root: Path):
        ids = []
        for number in range(4):
            (root / "file").write_bytes(os.urandom(100_000))
            ids.append(snap("create", "--label", str(number)).id)

        document = snap("prune", "--max-size", "250k", "--json").json

        assert [item["id"] for item in document["kept"]] == [ids[3], ids[2]]
        snap("gc")
        assert snap("stats", "--json").json["stored_bytes"] <= 250 << 10

    def test_the_newest_stays_whatever_it_takes(self, snap, history):
        document = snap("prune", "--max-size", "1", "--json").json

        assert [item["id"] for item in document["kept"]] == [history[0], history[2]]
        assert "undo" in document["kept"][0]["reasons"]


def test_what_an_interrupted_restore_needs_stays(snap, root: Path, store: Path, tmp_path: Path):
    from treesnap.core.handle import Handle
    from treesnap.testing.children import killed
    from treesnap.testing.doubles import Fault

    snap("create", "--tag", "stays=yes")
    (root / "file").write_text("one")
    first = snap("create").id
    (root / "file").write_text("two")
    restore = Fault(number=1, methods=frozenset({"exchange"}))
    ended = killed(
        lambda fs: Handle(context_at(root=root, store_path=str(store), fs=fs)).restore(first),
        restore,
    )
    assert ended.was_killed
    aside = root.rename(tmp_path / "aside")

    document = snap("-C", root, "prune", "--keep-tag", "stays", "--json", cwd=tmp_path).json

    needed = [["interrupted restore"]] * 2
    assert [item["reasons"] for item in document["kept"]] == [*needed, ["tag stays"]]
    aside.rename(root)
    assert snap("status").code == 0
    assert (root / "file").read_text() == "one"


def test_needs_no_store(unsaid_snap):
    assert unsaid_snap("prune").out == "0 snapshots removed, 0 kept\n"


@pytest.mark.parametrize(
    "words",
    [
        ("--keep-last", "-1"),
        ("--keep-within", "soon"),
        ("--keep-within", "1"),
        ("--max-size", "-5"),
        ("--max-size", "many"),
    ],
)
def test_refuses_what_is_no_number(snap, words):
    assert snap("prune", *words).code == 2


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("5m", 300), ("36h", 129_600), ("1d12h", 129_600), ("2w", 1_209_600)],
)
def test_durations(text: str, seconds: int):
    assert DURATION.convert(text) == seconds


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("1000", 1000),
        ("2k", 2048),
        ("500M", 500 << 20),
        ("1.5GiB", 3 << 29),
        ("10 GB", 10 << 30),
        ("1T", 1 << 40),
    ],
)
def test_sizes(text: str, size_bytes: int):
    assert SIZE.convert(text) == size_bytes


@pytest.mark.parametrize("kind", [DURATION, SIZE])
@pytest.mark.parametrize("text", ["", "x", "1x", "1.2.3", "h1"])
def test_other_words_are_refused(kind: ValueKind, text: str):
    with pytest.raises(InvalidArgument):
        kind.convert(text)


def test_a_dry_run_in_a_directory_that_was_never_captured_removes_nothing(snap, history, tmp_path):
    (tmp_path / "another").mkdir()

    result = snap("-C", tmp_path / "another", "prune", "--keep-last", "2", "--dry-run")

    assert (result.code, result.out) == (0, "0 snapshots would be removed, 0 kept\n")
