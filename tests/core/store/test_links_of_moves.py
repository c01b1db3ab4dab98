"""Each old place of a store that was moved often is one link to it, and it can come home."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

import treesnap
from sampling import sized
from treesnap.core.handle import Handle
from treesnap.core.model.errors import Refused, TreesnapError
from treesnap.core.ops.context import context_at
from treesnap.testing.doubles import (
    Fault,
    FaultyFileSystem,
    Killed,
    UnsyncedFileSystem,
    error_at,
    kill_at,
)

pytestmark = [pytest.mark.needs("exchange"), pytest.mark.sampled(12)]


class World:
    """A store at ``a``, which is moved to ``b``, ``c`` and back."""

    def __init__(self, base: Path) -> None:
        self.base = base / "places"
        self.root = base / "root"
        self.kept = base / "kept"
        self.root.mkdir()
        self.base.mkdir()
        (self.root / "file").write_text("content")
        treesnap.open(self.root, self.kept).create(name="good")
        self.reset()

    def reset(self) -> None:
        shutil.rmtree(self.base)
        self.base.mkdir()
        shutil.copytree(self.kept, self.base / "a")

    def handle(self, name: str, *faults: Fault) -> Handle:
        fs = FaultyFileSystem(*faults, inner=UnsyncedFileSystem())
        return Handle(context_at(self.root, str(self.base / name), fs=fs))

    def move(self, source: str, target: str, *faults: Fault) -> Handle:
        handle = self.handle(source, *faults)
        handle.store_move(self.base / target)
        return handle

    def there(self) -> dict[str, str]:
        """Returns each name, with where it leads directly."""
        return {
            path.name: os.path.basename(os.readlink(path)) if path.is_symlink() else ""
            for path in self.base.iterdir()
        }

    def assert_used(self, *names: str) -> None:
        for name in names:
            handle = treesnap.open(self.root, self.base / name)
            assert b"".join(handle.cat("good", "file")) == b"content"
            handle.create(name="mine")
            handle.delete("mine")


@pytest.fixture
def world(tmp_path) -> World:
    return World(tmp_path)


def far() -> Fault:
    """As if the first exchange of a move were between two file systems."""
    return Fault(errno=errno.EXDEV, methods=frozenset({"exchange"}))


FAR = pytest.mark.parametrize("faults", [list, lambda: [far()]], ids=["near", "far"])


def step(faults: Callable[[], list[Fault]]) -> int:
    """Returns how many calls lie between two that are tried."""
    return sized(14 if faults() else 6, 1)


def without_old(there: dict[str, str]) -> dict[str, str]:
    """Leaves out what moves to other file systems keep of the store."""
    return {name: lead for name, lead in there.items() if ".moved" not in name}


@FAR
def test_every_old_place_leads_there_directly(world, faults):
    world.move("a", "b", *faults())
    world.move("b", "c", *faults())
    world.move("a", "d", *faults())

    assert without_old(world.there()) == {"a": "d", "b": "d", "c": "d", "d": ""}
    world.assert_used(*"abcd")


@FAR
def test_a_store_comes_home_and_goes_away_as_often_as_it_likes(world, faults):
    world.move("a", "b", *faults())
    for _ in range(3):
        world.move("b", "a", *faults())
        assert without_old(world.there()) == {"a": "", "b": "a"}
        world.move("a", "b", *faults())
        assert without_old(world.there()) == {"a": "b", "b": ""}
    world.move("a", "c", *faults())
    world.move("a", "a", *faults())

    assert without_old(world.there()) == {"a": "", "b": "a", "c": "a"}
    world.assert_used(*"abc")


@FAR
def test_a_way_home_that_is_killed_ends_later_and_each_name_is_right_meanwhile(world, faults):
    for number in count(1, step(faults)):
        world.reset()
        world.move("a", "b")
        world.move("b", "c")
        dead = world.handle("c", *faults(), kill_at(number))
        with contextlib.suppress(Killed):
            dead.store_move(world.base / "a")
        assert len({(world.base / name).resolve() for name in "abc"}) == 1, number
        world.assert_used(*"abc")
        for rest in world.base.glob("a.partial"):  # whole, but for its name
            shutil.rmtree(rest)
        if not dead.context.fs.is_dead:
            assert number > 10
            return
        if (world.base / "a").is_symlink():
            for name in ("a.moving", "c.moved"):
                path = world.base / name
                if path.is_dir() and not path.is_symlink() and path != (world.base / "c").resolve():
                    shutil.rmtree(path)
            world.move("c", "a")
            assert without_old(world.there()) == {"a": "", "b": "a", "c": "a"}, number
        world.move("a", "d")
        assert without_old(world.there()) == {"a": "d", "b": "d", "c": "d", "d": ""}, number
        world.assert_used(*"abcd")


@FAR
def test_a_store_comes_home_after_it_left_a_way_home_that_was_killed(world, faults):
    for number in count(1, sized(6, 1)):
        world.reset()
        world.move("a", "b")
        dead = world.handle("b", kill_at(number))
        with contextlib.suppress(Killed):
            dead.store_move(world.base / "a")
        if not dead.context.fs.is_dead:
            assert number > 10
            return
        for again in count(1 + number % 5, 5):
            dead = world.handle("a", *faults(), kill_at(again))
            with contextlib.suppress(Killed):
                dead.store_move(world.base / f"d{again}")
            assert len({(world.base / name).resolve() for name in "ab"}) == 1, (number, again)
            if not dead.context.fs.is_dead:
                break
        world.assert_used("a", "b")
        if (world.base / "a").is_symlink():
            world.move("a", "a")
        assert not (world.base / "a").is_symlink()
        assert world.there()["b"] == "a"
        assert "a.moving" not in world.there(), (number, again)
        world.assert_used("a", "b")


@FAR
def test_a_way_home_that_fails_leaves_each_name_right(world, faults):
    for number in count(1, step(faults)):
        world.reset()
        world.move("a", "b")
        world.move("b", "c")
        fault = error_at(number, errno.EIO)
        handle = world.handle("c", *faults(), fault)
        with contextlib.suppress(TreesnapError):
            handle.store_move(world.base / "a")
        assert len({(world.base / name).resolve() for name in "abc"}) == 1, number
        world.assert_used(*"abc")
        if not handle.context.fs.hits_of(fault):
            assert number > 10
            return


@FAR
@pytest.mark.parametrize("name", ["n" * 255, "\u00e9" * 127, os.fsdecode(b"\xff" * 250)])
def test_a_store_with_the_longest_name_goes_on_and_comes_home(world, faults, name):
    world.move("a", name, *faults())
    world.move("a", "b", *faults())
    world.move("b", name, *faults())
    world.move("b", "a", *faults())
    world.handle("a").store_copy(world.base / ("c" * 255))

    lead = {key: value for key, value in world.there().items() if value}
    assert lead == {name: "a", "b": "a"}
    world.assert_used("a", "b", name, "c" * 255)


def test_a_link_of_a_user_is_replaced_where_it_is_named(world):
    (world.base / "mine").symlink_to(world.base / "a")

    world.move("a", "mine")

    assert world.there() == {"a": "mine", "mine": ""}
    world.assert_used("a", "mine")


def test_what_is_in_the_way_is_named_before_anything_is_done(world):
    world.move("a", "b")
    (world.base / "a.moving").write_text("mine")

    with pytest.raises(Refused, match=r"a\.moving.* exists"):
        world.move("b", "a")

    assert world.there() == {"a": "b", "b": "", "a.moving": ""}


def test_a_link_to_something_else_is_not_replaced(world):
    shutil.copytree(world.kept, world.base / "other")
    (world.base / "mine").symlink_to(world.base / "other")

    with pytest.raises(Refused):
        world.move("a", "mine")

    assert world.there() == {"a": "", "other": "", "mine": "other"}


def test_what_a_store_says_is_followed_only_where_a_link_leads_to_it(world):
    shutil.copytree(world.kept, world.base / "other")
    (world.base / "file").write_text("mine")
    (world.base / "theirs").symlink_to(world.base / "other")
    (world.base / "ours").symlink_to(world.base / "a")
    links = [str(world.base / name) for name in ("file", "theirs", "ours", "absent", "a")]
    (world.base / "a" / "links").write_text(json.dumps({"links": [*links, "relative", "\0"]}))

    world.move("a", "b")

    assert world.there() == {
        "a": "b",
        "b": "",
        "file": "",
        "other": "",
        "theirs": "other",
        "ours": "b",
    }
    assert (world.base / "file").read_text() == "mine"
    listed = json.loads((world.base / "b" / "links").read_text())["links"]
    assert sorted(map(os.path.basename, listed)) == ["a", "ours"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"links": 3}', '{"links": [3]}', "[" * 90000])
def test_a_damaged_list_of_links_stops_nothing(world, content):
    (world.base / "a" / "links").write_text(content)

    world.move("a", "b")

    assert world.there() == {"a": "b", "b": ""}
    world.assert_used("a", "b")
