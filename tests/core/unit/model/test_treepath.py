"""Paths inside a root: what is one, and what never gets to be one."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strategies as ours
from sampling import sized
from treesnap.core.model import treepath
from treesnap.core.model.errors import InvalidArgument

EXAMPLES = settings(max_examples=sized(30, 100), deadline=None, derandomize=True)


@pytest.mark.parametrize("name", [b"", b".", b"..", b"/", b"a/", b"\0", b"a\0b", b"a" * 4096])
def test_names_that_lead_elsewhere_are_none(name):
    assert not treepath.is_valid_name(name)


@pytest.mark.parametrize("name", [b"...", b"..a", b" ", b"\n", b"\xff", b"~", b"a" * 4095])
def test_every_other_name_is_one(name):
    assert treepath.is_valid_name(name)


@EXAMPLES
@given(st.lists(st.sampled_from([b"a", b"b.", b"", b".", b"..", b"/", b"a/b", b"\0", b"a" * 4096])))
def test_many_names_are_looked_at_as_each_is(names):
    assert treepath.are_valid_names(names) == all(map(treepath.is_valid_name, names))


@pytest.mark.parametrize(
    "path", [b"/", b"/a", b"a/", b"a//b", b"..", b"../a", b"a/..", b"./a", b"a/./b", b"a\0"]
)
def test_stored_paths_that_lead_elsewhere_are_refused(path):
    with pytest.raises(InvalidArgument):
        treepath.parse(path)


@EXAMPLES
@given(ours.paths())
def test_a_path_is_its_components(path):
    parent, name = treepath.split(path)

    assert treepath.parse(path) == path
    assert b"/".join(treepath.components(path)) == path
    assert treepath.join(parent, name) == path
    assert treepath.is_within(path, parent)
    assert treepath.is_within(path, treepath.ROOT)
    assert not parent or not treepath.is_within(parent, path)


def test_the_root_has_no_components():
    assert treepath.components(treepath.ROOT) == []
    assert treepath.parse(treepath.ROOT) == treepath.ROOT


def test_a_name_that_begins_like_a_directory_is_not_within_it():
    assert not treepath.is_within(b"ab", b"a")
    assert treepath.is_within(b"a/b", b"a")
    assert treepath.is_within(b"a", b"a")


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("a", b"base/a"),
        (b"a\xff", b"base/a\xff"),
        ("..", b""),
        ("../b", b"b"),
        (".", b"base"),
        ("a/../b//c/", b"base/b/c"),
        ("/srv/root", b""),
        ("/srv/root/x", b"x"),
        (os.path.join("/srv", "root", "x", "..", "y"), b"y"),
    ],
)
def test_what_a_person_types_becomes_a_path(typed, expected):
    assert treepath.from_user(typed, root="/srv/root", base="/srv/root/base") == expected


@pytest.mark.parametrize("typed", ["../..", "/", "/srv", "/srv/rootx", "/srv/root/../x", "a\0b"])
def test_what_lies_outside_the_root_is_refused(typed):
    with pytest.raises(InvalidArgument, match="outside the root"):
        treepath.from_user(typed, root="/srv/root", base="/srv/root/base")


def test_everything_is_inside_the_root_of_the_file_system():
    assert treepath.from_user("etc", root="/", base="/") == b"etc"
    assert treepath.from_user("/", root="/", base="/") == b""


@EXAMPLES
@given(st.lists(ours.paths() | st.just(b""), max_size=8))
def test_nested_paths_are_left_out(paths):
    kept = treepath.without_nested(paths)

    assert all(any(treepath.is_within(path, top) for top in kept) for path in paths)
    assert not any(treepath.is_within(one, other) for one in kept for other in kept if one != other)
    assert treepath.without_nested(list(kept)) == kept


@pytest.mark.parametrize(
    "paths", [(), (b"b", b"a"), (b"a", b"a"), (b"a", b"a/b"), (b"", b"a"), (b"..",), (b"/a",)]
)
def test_a_stored_scope_that_is_not_canonical_is_refused(paths):
    with pytest.raises(InvalidArgument):
        treepath.parse_scope(paths)


@pytest.mark.parametrize(
    "paths",
    [
        (b"/".join([b"d"] * 20_000),),
        (b"/".join([b"d" * 255] * 2_000),),
        tuple(b"%d/" % number + b"/".join([b"d"] * 1000) for number in range(100, 200)),
    ],
)
def test_a_stored_scope_is_refused_if_what_is_above_it_is_far_longer(paths):
    with pytest.raises(InvalidArgument, match="too deep"):
        treepath.parse_scope(paths)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "paths",
    [
        (b"/".join([b"d"] * 8_000),),
        (b"/".join([b"d" * 255] * 500),),
        tuple(b"/".join([b"d"] * 1000) + b"/%d" % number for number in range(1000, 2000)),
        tuple(b"%04d/" % (number // 9) + b"e/" * 60 + b"%05d" % number for number in range(10**4)),
    ],
)
def test_a_stored_scope_may_be_deep_and_share_what_is_above(paths):
    assert treepath.parse_scope(paths) == paths


def test_a_scope_is_in_the_order_of_its_components():
    scope = (b"a", b"b/c", b"b-", b"b.c")

    assert treepath.parse_scope(treepath.without_nested(list(scope))) == (
        b"a",
        b"b/c",
        b"b-",
        b"b.c",
    )


def test_a_descent_comes_back_to_where_it_was():
    descent = treepath.Descent(b"top")
    seen = [descent.path]
    for name in (b"a", b"b"):
        descent.enter(treepath.join(descent.path, name))
        seen.append(descent.path)
    descent.leave()
    descent.leave()
    descent.leave()

    assert (*seen, descent.path) == (b"top", b"top/a", b"top/a/b", b"top")
