"""A sample of what ``tox -e soak-remote`` does for minutes, and what it would notice."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from ceph import missing_programs
from remote.soak.remote_actors import RemotePlace, Writer
from remote.soak.remote_checks import RemoteChecker
from remote.soak.run_remote_soak import remote_soak
from treesnap.core.model.snapshots import SnapshotKind

pytestmark = pytest.mark.sampled(10)

SEED = 11
PUSHES = 40
"""Of all writers, at least: about twenty seconds."""


@pytest.mark.slow
def test_servers_that_are_killed_under_load_lose_nothing(tmp_path, monkeypatch):
    if missing := missing_programs():
        pytest.skip(f"Ceph is not installed: {', '.join(missing)}")
    monkeypatch.setenv("TREESNAP_REMOTE_KEY", "")  # puts back what the soak sets

    events = ("gateway killed", "storage killed", "collector: collected")
    problems, counts, text = remote_soak(tmp_path, SEED, 3, pushes=PUSHES, events=events)

    assert problems == []
    assert ", 0 lost, 0 writers blocked, " in text
    assert counts["writer: acknowledged"] >= PUSHES


class TestWhatIsNoticed:
    """The same machines on a remote in a directory, which is not killed."""

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return str(tmp_path / "remote")

    @pytest.fixture
    def writer(self, tmp_path: Path, url: str) -> Writer:
        """One that has pushed two snapshots."""
        place = RemotePlace(tmp_path, root_count=1)
        place.prepare(SEED)
        place.add_remote([url], encrypted=False)
        writer = Writer(place, 0, Random(SEED))
        for _ in range(2):
            writer.push_one()
        return writer

    def check(self, writer: Writer, url: str) -> RemoteChecker:
        checker = RemoteChecker(writer.place, url)
        checker.run()
        return checker

    def captured(self, writer: Writer) -> list[str]:
        return [line["ids"][0] for line in writer.ledger.log.lines() if line["what"] == "captured"]

    def test_nothing_where_nothing_is_wrong(self, writer, url):
        checker = self.check(writer, url)

        assert checker.problems == []
        assert checker.counts["acknowledged"] == checker.counts["restored exactly"] == 2

    def test_a_snapshot_that_a_policy_deleted(self, writer, url):
        writer.prune(keep_last=1)

        checker = self.check(writer, url)

        assert checker.problems == []
        assert (checker.counts["deleted"], checker.counts["restored exactly"]) == (1, 1)

    def test_a_snapshot_that_is_lost(self, writer, url):
        lost = self.captured(writer)[-1]
        commits = sorted((Path(url) / "commits").iterdir(), key=os.path.getmtime)
        commits[-1].unlink()

        checker = self.check(writer, url)

        assert checker.problems == [f"snapshot {lost} is lost"]
        assert checker.counts["lost"] == 1

    def test_a_snapshot_that_holds_something_else(self, writer, url):
        (writer.place.roots[0] / "intruder").write_bytes(b"unseen")
        made = writer.handle.create().id
        writer.ledger.log.add(what="captured", ids=[made], states=writer.ledger.now())
        writer.remotes.push()

        problems = self.check(writer, url).problems

        assert any(made in line and "b'intruder'" in line for line in problems)

    def test_a_snapshot_that_no_machine_captured(self, writer, url):
        made = writer.handle.create(kind=SnapshotKind.MANUAL).id
        writer.remotes.push()

        assert f"{made}: no machine captured it" in self.check(writer, url).problems

    def test_a_pack_that_is_missing(self, writer, url):
        for pack in (Path(url) / "packs").iterdir():
            pack.unlink()

        assert any("verify" in problem for problem in self.check(writer, url).problems)
