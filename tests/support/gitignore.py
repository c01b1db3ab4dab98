"""Trees and patterns made at random, and what git says of them: the oracle of ignore rules."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

IGNORE_FILE = b".gitignore"

NAMES = [
    *(b"a", b"b", b"c", b"ab", b"ba", b"abc", b"aa", b"bb", b"A", b"a.c", b".a", b"a.b.c", b"keep"),
    *(
        b"foo",
        b"foo.c",
        b"x.o",
        b"a-c",
        b"-",
        b"]",
        b"[",
        b"[a]",
        b"!a",
        b"#a",
        b"\\",
        b"a\\",
        b"*",
    ),
    *(
        b"?",
        b"a ",
        b" a",
        b" ",
        b"a\t",
        b"a\r",
        b"\n",
        b"a\nb",
        b"\xff",
        b"a\xff",
        b"\xc3\xa9",
        b":a",
    ),
    *(b"1", b"a1", b"_", b"^", b"a:", b"**"),
]
PIECES = [
    *(
        b"a",
        b"b",
        b"c",
        b"a",
        b"b",
        b"ab",
        b"foo",
        b"keep",
        b".c",
        b"A",
        b"1",
        b"\xff",
        b"\xc3\xa9",
    ),
    *(
        b"*",
        b"*",
        b"*",
        b"**",
        b"***",
        b"?",
        b"/",
        b"/",
        b"/",
        b"/",
        b"**/",
        b"/**",
        b"/**/",
        b"*/",
    ),
    *(b"[a]", b"[!a]", b"[^a]", b"[a-c]", b"[c-a]", b"[]]", b"[!]]", b"[]-a]", b"[a-]", b"[-a]"),
    *(b"[[:alpha:]]", b"[![:alpha:]]", b"[[:space:]]", b"[[:punct:]a]", b"[[:none:]]", b"[[:a]"),
    *(
        b"[",
        b"]",
        b"[a",
        b"[!",
        b"[]",
        b"[a\\]b]",
        b"[\\a-c]",
        b"[a-\\c]",
        b"[a/b]",
        b"[/]",
        b"[+-0]",
    ),
    *(b"[[:digit:]-c]", b"[a-[:digit:]]", b"[[:]", b"[[::]]", b"[:alpha:]", b"[^]a]", b"[\\\\]"),
    *(
        b"\\",
        b"\\a",
        b"\\*",
        b"\\/",
        b"\\\\",
        b"\\ ",
        b"\\[",
        b"!",
        b"#",
        b" ",
        b"  ",
        b"\t",
        b"\r",
    ),
    *(b"-", b"^", b":", b"\n", b".", b"\x80", b"\0"),
]
WHOLE = [
    *(
        b"*",
        b"!*",
        b"!*/",
        b"!*.c",
        b"foo/**",
        b"!foo/keep",
        b"data/**",
        b"!data/**/",
        b"!",
        b"***",
    ),
    *(
        b"/",
        b"//",
        b"**",
        b"/**",
        b"**/",
        b"**/a",
        b"a/**/b",
        b"a/**/",
        b"a/**//",
        b"/*",
        b"/*/",
        b"\\",
    ),
    *(
        b"a\\",
        b"#a",
        b"\\#a",
        b"\\!a",
        b"!!a",
        b"a ",
        b"a\\ ",
        b"a\\  ",
        b"a\\\\ ",
        b"a\r",
        b"/a",
        b"a/",
    ),
    *(
        b"a**/b",
        b"a/b**",
        b"a**b",
        b"**a/b",
        b"/a**/b",
        b"**/**/a",
        b"**/*/a",
        b"*/**/a",
        b"a/***/b",
    ),
    *(
        b"**\\/a",
        b"a/**\\/b",
        b"a\\/**",
        b"a/*/b",
        b"*a*b*",
        b"?",
        b"[a-b]/",
        b"!a/",
        b"!/a",
        b"",
        b" ",
    ),
    *(
        b"\xef\xbb\xbfa",
        b"**/a/**",
        b"**/a/**/b",
        b"*/a",
        b"a//b",
        b"!**/",
        b"a/**/**/b",
        b"./a",
        b"a/.",
    ),
]


def make_pattern(random: Random) -> bytes:
    """Returns a line of an ignore file: mostly short, often with something odd in it."""
    if random.random() < 0.35:
        return random.choice(WHOLE)
    line = b"".join(random.choice(PIECES) for _ in range(random.randint(1, 6)))
    return b"!" + line if random.random() < 0.2 else line


def make_rules(random: Random) -> bytes:
    """Returns the content of an ignore file."""
    lines = [make_pattern(random) for _ in range(random.randint(1, 5))]
    ending = random.choice([b"\n", b"\n", b"\n", b"\r\n"])
    data = ending.join(lines) + random.choice([ending, b""])
    return b"\xef\xbb\xbf" + data if random.random() < 0.03 else data


def make_tree(random: Random, top: bytes, depth: int = 0) -> None:
    """Makes a directory with files, links and directories, some with ignore files."""
    os.mkdir(top)
    if depth == 0 or random.random() < 0.2:
        write_rules(top, make_rules(random))
    names = random.sample(NAMES, random.randint(2, 5))
    for name in names:
        path = os.path.join(top, name)
        kind = random.random()
        if kind < 0.5 and depth < 3:
            make_tree(random, path, depth + 1)
        elif kind < 0.9:
            os.mknod(path)
        else:
            os.symlink(random.choice([b".", b"nothing"]), path)


def write_rules(directory: bytes, data: bytes) -> None:
    """Writes the ignore file of a directory."""
    with open(os.path.join(directory, IGNORE_FILE), "wb") as file:
        file.write(data)


def paths_below(top: bytes, relative: bytes = b"") -> Iterator[tuple[bytes, bool]]:
    """Yields every path below a directory and whether it is a directory, parents first."""
    for entry in sorted(os.scandir(os.path.join(top, relative)), key=lambda item: item.name):
        path = os.path.join(relative, entry.name)
        if path == b".git":
            continue
        is_directory = entry.is_dir(follow_symlinks=False)
        yield path, is_directory
        if is_directory:
            yield from paths_below(top, path)


class Git:
    """A repository that says which paths of its directory are ignored."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        home = str(directory / ".git")
        kept = {
            name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ
        }
        self._environment = {
            **kept,
            "HOME": home,
            "XDG_CONFIG_HOME": home,
            "GIT_CONFIG_NOSYSTEM": "1",
        }
        self._run("init", "--quiet", "--template=")

    def _run(self, *words: str, data: bytes = b"", codes: tuple[int, ...] = (0,)) -> bytes:
        result = subprocess.run(
            ["git", *words],
            cwd=self.directory,
            env=self._environment,
            input=data,
            capture_output=True,
            check=False,
        )
        assert result.returncode in codes, result.stderr
        return result.stdout

    def ignored(self, paths: Iterable[bytes]) -> dict[bytes, bytes]:
        """Returns the pattern by which each ignored path is ignored."""
        data = b"".join(path + b"\0" for path in paths)
        words = ("check-ignore", "--stdin", "-z", "-v", "-n", "--no-index")
        fields = self._run(*words, data=data, codes=(0, 1)).split(b"\0")
        found = {}
        for start in range(0, len(fields) - 1, 4):
            pattern, path = fields[start + 2], fields[start + 3]
            if pattern and not pattern.startswith(b"!"):
                found[path] = fields[start] + b":" + fields[start + 1] + b":" + pattern
        return found
