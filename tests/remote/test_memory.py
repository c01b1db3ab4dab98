"""No command of remotes takes more than 200 MiB of memory, however much is stored there.

Each is a process of its own, so that what it takes can be measured.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path
from random import Random

import pytest

import treesnap
from memory import run_measured
from sampling import IS_FULL
from treesnap.remote import MemberRole, Remotes
from treesnap.remote.keys import Secret

pytestmark = pytest.mark.sampled(2)

IS_FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
PEAK_BYTES_MAX = (300 if IS_FREE_THREADED else 200) << 20
"""The heap of each thread keeps what it has freed where Python is free-threaded: 220 to 280 MiB."""
SIZE_BYTES = 143 << 20
"""Five packs."""
FILES = 572
KEY = "5a" * 32


def fill(directory: Path, seed: int, step: int = 1) -> None:
    """Writes files of random bytes, which nothing compresses; with a step only some of them."""
    random = Random(seed)
    directory.mkdir(exist_ok=True)
    for number in range(0, FILES, step):
        (directory / str(number)).write_bytes(random.randbytes(SIZE_BYTES // FILES))


class Scene:
    """An encrypted remote in a directory, a desk and a sandbox."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = place
        self.remote = str(place / "remote")
        self.peaks: dict[str, int] = {}
        self._patch = monkeypatch
        monkeypatch.setenv("HOME", str(place))
        fill(place / "desk", 1)
        self.store = place / "store of desk"
        handle = treesnap.open(place / "desk", self.store)
        handle.create()
        remotes = Remotes(handle, lambda _: lambda: Secret.raw_key(KEY))
        remotes.add("disk", self.remote, encrypted=True)
        self.invitation = remotes.invite(None, MemberRole.WRITER)

    def snap(self, *args: str, at: str = "desk", secret: str = "KEY") -> None:
        """Runs a command, and takes note of its peak."""
        for name in ("KEY", "INVITATION"):
            self._patch.delenv(f"TREESNAP_REMOTE_{name}", raising=False)
        value = KEY if secret == "KEY" else self.invitation.to_text()
        self._patch.setenv(f"TREESNAP_REMOTE_{secret}", value)
        root, store = self.place / at, self.place / f"store of {at}"
        program = [sys.executable, "-m", "treesnap", "-q", "-C", root, "--store", store]
        ended = run_measured([*program, *args], self.place / "errors")
        assert ended.exit_code in {0, 7}, (args, ended.error)  # 7 where it found damage
        self.peaks[" ".join(args[:2])] = ended.peak_bytes

    def require_bounded(self) -> None:
        """Raises AssertionError where one took more than it may."""
        too_large = {name: peak for name, peak in self.peaks.items() if peak > PEAK_BYTES_MAX}
        assert too_large == {}


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


def test_what_is_sent_and_received_lies_in_memory_pack_by_pack(scene: Scene):
    fill(scene.place / "box", 2)
    treesnap.open(scene.place / "box", scene.place / "store of box").create()
    scene.snap("push", "disk")
    scene.snap("remote", "deliver", scene.remote, at="box", secret="INVITATION")
    scene.snap("remote", "receive", "disk")

    scene.require_bounded()


@pytest.mark.skipif(not IS_FULL, reason="some minutes, in `tox -e long`")
@pytest.mark.slow
def test_what_reads_a_whole_remote_lies_in_memory_part_by_part(scene: Scene):
    scene.snap("push", "disk")
    scene.snap("clone", scene.remote, str(scene.place / "again"), at="again")
    scene.snap("fetch", "disk")
    scene.snap("remote", "check", "disk")
    scene.snap("remote", "verify", "disk", "--read-data")
    fill(scene.place / "desk", 3, step=2)
    treesnap.open(scene.place / "desk", scene.store).create()
    scene.snap("push", "disk")
    scene.snap("remote", "prune", "disk", "--keep-last", "1")
    scene.snap("remote", "gc", "disk")  # copies half of each of the first packs

    shutil.rmtree(scene.place / "remote" / "index")
    scene.snap("remote", "repair", "disk", "--rebuild")
    pack = min((scene.place / "remote" / "packs").iterdir())
    size = pack.stat().st_size
    os.truncate(pack, size - (1 << 20))
    os.truncate(pack, size)
    scene.snap("remote", "repair", "disk")
    scene.snap("remote", "verify", "disk", "--read-data", "--repair")

    scene.require_bounded()
