"""Remotes in a bucket of a real server."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

import treesnap
from oracle import difference, record
from treesnap.core.model.errors import ErrorCode, RemoteFailed
from treesnap.remote import MemberRole, Remotes
from treesnap.remote.keys import Secret

pytestmark = pytest.mark.sampled(10)


def secret_of(_known):
    return lambda: Secret.raw_key("5a" * 32)


@pytest.fixture
def handle(tmp_path: Path) -> treesnap.Handle:
    root = tmp_path / "garden"
    (root / "beds").mkdir(parents=True)
    for number in range(30):
        (root / "beds" / str(number)).write_bytes(os.urandom(number * 4_000))
    return treesnap.open(root, tmp_path / "store")


def cloned(directory: Path, store: Path, url: str, history: str | None = None) -> None:
    Remotes(treesnap.open(directory, store), secret_of).clone(url, history)


def test_push_collect_and_clone(handle, bucket_url, tmp_path):
    remotes = Remotes(handle, secret_of)

    info = remotes.add("backup", bucket_url)

    assert (info.is_encrypted, info.may_collect) == (True, True)
    handle.create()
    remotes.push()
    (tmp_path / "garden" / "beds" / "0").write_text("more")
    handle.create()
    remotes.push()
    remotes.collect()
    cloned(tmp_path / "again", tmp_path / "other", bucket_url)
    assert difference(record(tmp_path / "garden"), record(tmp_path / "again")) == []


def test_a_small_push_asks_the_server_six_times(handle, bucket_url, ceph):
    remotes = Remotes(handle, secret_of)
    remotes.add("backup", bucket_url)
    handle.create()
    remotes.push()
    Path(handle.root, "beds", "0").write_text("more")
    handle.create()
    before = ceph.requests()

    remotes.push()

    # key slot; commits and states listed; pack, commit; states listed again
    assert ceph.requests() - before == 6


def test_a_delivery_asks_the_server_twice(handle, bucket_url, ceph, tmp_path):
    """A writer has to be allowed nothing but to write: a pack and a letter."""
    owner = Remotes(treesnap.open(tmp_path / "desk", tmp_path / "other"), secret_of)
    owner.add("backup", bucket_url)
    invitation = owner.invite(None, MemberRole.WRITER)
    handle.create()
    before = ceph.requests()

    Remotes(handle).deliver(bucket_url, invitation)

    assert ceph.requests() - before == 2
    (received,) = owner.receive().received
    cloned(tmp_path / "again", tmp_path / "third", bucket_url, received.history_id)
    assert difference(record(tmp_path / "garden"), record(tmp_path / "again")) == []


def test_machines_push_while_another_collects(handle, bucket_url, tmp_path):
    """Each machine is a thread with a store of its own; what was acknowledged can be cloned."""
    Remotes(handle, secret_of).add("backup", bucket_url)
    failures: list[BaseException] = []
    pushed = threading.Semaphore(0)

    def work(number: int) -> None:
        try:
            root = tmp_path / f"root{number}"
            root.mkdir()
            mine = treesnap.open(root, tmp_path / f"store{number}")
            remotes = Remotes(mine, secret_of)
            remotes.add("backup", bucket_url)
            for turn in range(4):
                (root / "file").write_text(f"{number} {turn}")
                (root / "shared").write_text(f"{turn}")
                mine.create()
                assert len(remotes.push().snapshots) == 1
                pushed.release()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            failures.append(error)
            pushed.release(4)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    remotes = Remotes(handle, secret_of)
    for _ in range(3 * 4):
        pushed.acquire()
        remotes.collect()
    for thread in threads:
        thread.join()

    assert failures == []
    for number in range(3):
        cloned(tmp_path / f"again{number}", tmp_path / "other", bucket_url, f"root{number}")
        original, again = (record(tmp_path / f"{name}{number}") for name in ("root", "again"))
        assert difference(original, again) == []


def test_a_bucket_that_is_not_there_is_said_at_once(handle, bucket_url):
    with pytest.raises(RemoteFailed) as failed:
        Remotes(handle, secret_of).add("backup", bucket_url.replace("s3://tests", "s3://missing"))

    assert failed.value.code == ErrorCode.REMOTE_MISSING
