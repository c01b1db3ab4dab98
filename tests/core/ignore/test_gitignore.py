"""Ignore rules are exactly git's: whole trees and patterns, compared with ``git check-ignore``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from random import Random

import pytest

import treesnap
from gitignore import IGNORE_FILE, Git, make_pattern, make_tree, paths_below, write_rules
from sampling import sized
from treesnap.core.model.entries import SkipReason
from treesnap.core.worktree.scan.patterns import Matcher, parse_lines

pytestmark = pytest.mark.sampled(10)

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")

TREES_EACH = 100
"""How many trees, each with ignore files of its own, one repository holds."""


def own_answer(top: bytes) -> set[bytes]:
    """Returns the paths that our rules exclude, found by walking as a capture does."""
    matchers: dict[bytes, Matcher] = {}
    hidden: set[bytes] = set()

    def enter(directory: bytes) -> None:
        try:
            with open(os.path.join(top, directory, IGNORE_FILE), "rb") as file:
                matchers[directory] = Matcher(parse_lines(file.read())[0])
        except OSError:
            return

    def is_hidden(path: bytes, *, is_directory: bool) -> bool:
        directory, name = os.path.split(path)
        while True:
            if directory in matchers:
                below = path[len(directory) + 1 :] if directory else path
                found = matchers[directory].verdict(name, below, is_directory=is_directory)
                if found is not None:
                    return found
            if not directory:
                return False
            directory = os.path.dirname(directory)

    enter(b"")
    for path, is_directory in paths_below(top):
        if os.path.dirname(path) in hidden or is_hidden(path, is_directory=is_directory):
            hidden.add(path)
        elif is_directory:
            enter(path)
    return hidden


def rules_above(top: bytes, path: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields what to print for a difference: the ignore files that may decide about a path."""
    while path:
        path = os.path.dirname(path)
        place = os.path.join(top, path, IGNORE_FILE)
        if os.path.isfile(place):
            with open(place, "rb") as file:
                yield path, file.read()


def differences(
    top: bytes, git: Mapping[bytes, bytes], ours: set[bytes]
) -> list[tuple[bytes, bytes | None, list[tuple[bytes, bytes]]]]:
    """Returns the paths that only one side ignores, with git's reason and all rules."""
    return [
        (path, git.get(path), list(rules_above(top, path))) for path in sorted(ours ^ git.keys())
    ]


@needs_git
@pytest.mark.parametrize(
    "seeds",
    [range(sized(3, 10)), pytest.param(range(10, 110), marks=pytest.mark.slow)],
    ids=["some", "all"],
)
def test_generated_rules_exclude_what_git_ignores(tmp_path, seeds):
    for seed in seeds:
        random = Random(seed)
        top = tmp_path / str(seed)
        top.mkdir()
        git = Git(top)
        for number in range(TREES_EACH):
            make_tree(random, os.fsencode(top / str(number)))
        if seed % 4 == 0:
            write_rules(os.fsencode(top), make_pattern(random) + b"\n")

        paths = [path for path, _ in paths_below(os.fsencode(top))]
        found = differences(os.fsencode(top), git.ignored(paths), own_answer(os.fsencode(top)))

        assert (seed, found[:3]) == (seed, [])
        shutil.rmtree(top)


@needs_git
def test_a_capture_excludes_what_git_ignores(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    git = Git(root)
    random = Random(1)
    for number in range(TREES_EACH):
        make_tree(random, os.fsencode(root / str(number)))
    for path in list(root.rglob(".gitignore")):
        shutil.copy(path, path.with_name(".snapignore"))
    paths = [path for path, _ in paths_below(os.fsencode(root))]
    shutil.rmtree(root / ".git" / "hooks", ignore_errors=True)
    ignored = git.ignored(paths)

    skipped = treesnap.open(root, tmp_path / "store").create().skipped

    assert {item.reason for item in skipped} == {SkipReason.EXCLUDED}
    assert {item.path for item in skipped} == {
        path for path in ignored if os.path.dirname(path) not in ignored
    }


CLASSES = (
    *("alnum", "alpha", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space"),
    *("upper", "xdigit", "none", "ALPHA"),
)


@needs_git
@pytest.mark.parametrize("negation", ["", "!", "^"])
def test_classes_hold_the_same_bytes_as_in_git(tmp_path, negation):
    git = Git(tmp_path)
    lines = [f"/{name}/[{negation}[:{name}:]]" for name in CLASSES]
    write_rules(os.fsencode(tmp_path), "\n".join(lines).encode())
    for name in CLASSES:
        (tmp_path / name).mkdir()
        for byte in {*range(1, 256)} - {ord("/"), ord(".")}:
            os.mknod(os.path.join(os.fsencode(tmp_path), name.encode(), bytes((byte,))))
    paths = [path for path, _ in paths_below(os.fsencode(tmp_path)) if b"/" in path]

    assert own_answer(os.fsencode(tmp_path)) == git.ignored(paths).keys()


EXAMPLES = {
    "all but C files": (["*", "!*/", "!*.c"], ["a.c", "d/b.c", "d/b.h", "d/e/f.c", "x"]),
    "contents of a directory": (["foo/**", "!foo/keep"], ["foo/keep", "foo/a", "foo/b/keep"]),
    "contents, but directories": (["data/**", "!data/**/"], ["data/a", "data/b/c", "data/b/d/e"]),
    "classes": (["[[:digit:]]*", "[[:upper:][:punct:]]"], ["1a", "A", "a", "-", "_", "ab"]),
    "a backslash at the end": (["a\\", "b"], ["a", "a\\", "b"]),
    "nothing but a negation": (["!", "b"], ["!", "a", "b"]),
    "three stars": (["a/***/b", "***.o"], ["a/b", "a/x/b", "a/x/y/b", "c.o", "d/c.o"]),
    "bytes": (["\udcff*", "\udce9"], ["\udcffa", "\udce9", "a\udcff"]),
    "spaces at the end": (["a ", "b\\ ", "c\t"], ["a", "a ", "b", "b ", "c", "c\t"]),
    "one slash": (["/", "//", "a//b"], ["a/b", "c"]),
    "stars beside names": (["a**/b", "x/y**", "**z/w"], ["ab", "a/b", "ac/d/b", "x/yy/z", "zz/w"]),
    "slashes at the end": (["a**//", "**//", "b/**//"], ["a/b", "b/c/d", "ab/c"]),
    "a directory alone": (["foo/bar/", "!foo/bar/"], ["foo/bar/a", "foo/barbaz/a", "bar/a"]),
    "nothing comes back in": (["d/", "!d/keep"], ["d/keep", "e/d/keep"]),
    "escapes": (["\\!a", "\\#b", "[\\]]", "\\*", "a\\/b"], ["!a", "#b", "]", "*", "x", "a/b"]),
    "ends of lines": (["a\r", "b\r\r", "c"], ["a", "b", "b\r", "c"]),
}


@pytest.mark.sampled(6)
@needs_git
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_excludes_what_git_ignores(tmp_path, name):
    patterns, files = EXAMPLES[name]
    root = tmp_path / "root"
    root.mkdir()
    git = Git(root)
    for path in files:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    data = "\n".join(patterns).encode("utf-8", "surrogateescape") + b"\n"
    write_rules(os.fsencode(root), data)
    paths = [path for path, _ in paths_below(os.fsencode(root))]
    ignored = git.ignored(paths)
    shutil.rmtree(root / ".git")
    (root / IGNORE_FILE.decode()).rename(root / ".snapignore")
    ignored = {path.replace(IGNORE_FILE, b".snapignore"): why for path, why in ignored.items()}

    skipped = treesnap.open(root, tmp_path / "store").create().skipped

    assert {item.path for item in skipped} == {
        path for path in ignored if os.path.dirname(path) not in ignored
    }
