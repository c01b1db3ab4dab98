"""The superuser moves a store to where every user may make names: a link there is not obeyed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import treesnap
from other_user import OTHER_ID, Other, replace_by
from sampling import sized
from treesnap.core.handle import Handle
from treesnap.core.model.errors import ErrorCode, Refused, TreesnapError
from treesnap.core.ops.context import context_at

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser becomes another user"),
    pytest.mark.sampled(10),
]

LINKS = ["moved", "moved.moving"]
CALLS_MAX = 3000


@pytest.fixture(autouse=True)
def no_safe_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names no directory as safe, as most users do."""
    monkeypatch.delenv("SNAP_SAFE_DIRECTORIES", raising=False)


class World:
    """A store of the superuser, and a directory like ``/tmp``."""

    def __init__(self, base: Path) -> None:
        self.root, self.store, self.shared = base / "root", base / "store", base / "shared"
        for path in (self.root, self.shared):
            path.mkdir(parents=True)
        self.shared.chmod(0o1777)
        treesnap.open(self.root, self.store).create(name="good")

    def plant(self, name: str, leads_to: str) -> Path:
        """Puts a link of the other user there, unless the name is taken."""
        path = self.shared / name
        replace_by(path, self.shared / "aside", lambda fd, at: os.symlink(leads_to, at, dir_fd=fd))
        return path

    def assert_own(self) -> None:
        """Fails unless the store is where it was, or at a link of the superuser's to it."""
        assert self.store.lstat().st_uid == 0
        assert treesnap.open(self.root, self.store).resolve("good").name == "good"


@pytest.mark.parametrize("leads", ["itself", "the store", "elsewhere", "nowhere"])
def test_a_link_of_another_user_is_not_that_of_a_killed_move(tmp_path, leads):
    world = World(tmp_path)
    path = world.shared / "moved"
    target = {"itself": path, "the store": world.store, "elsewhere": tmp_path, "nowhere": "/no"}
    world.plant("moved", str(target[leads]))

    with pytest.raises(Refused) as caught:
        treesnap.open(world.root, world.store).store_move(path)

    assert caught.value.code == ErrorCode.TARGET_NOT_EMPTY
    assert path.lstat().st_uid == OTHER_ID
    assert not world.store.is_symlink()
    world.assert_own()


@pytest.mark.needs("exchange")
@pytest.mark.parametrize("name", LINKS)
@pytest.mark.parametrize("leads", ["itself", "elsewhere"])
def test_a_link_that_appears_meanwhile_is_not_put_in_the_place_of_the_store(tmp_path, name, leads):
    ends = set()
    for number in range(1, CALLS_MAX, sized(7, 1)):
        world = World(tmp_path / str(number))
        path = world.shared / "moved"
        if name == "moved.moving":  # where a store is for a moment that comes home
            path.symlink_to(world.store)
        target = str(world.shared / name if leads == "itself" else tmp_path)

        def act(is_first: bool, world=world, target=target) -> bool:
            if is_first and not os.path.lexists(world.shared / name):
                world.plant(name, target)
            return True

        fs = Other(number, act)
        try:
            Handle(context_at(world.root, str(world.store), fs=fs)).store_move(path)
        except TreesnapError as error:
            ends.add(error.code)
        world.assert_own()
        if fs.left > 0:
            break
    assert ends == {ErrorCode.TARGET_NOT_EMPTY}
