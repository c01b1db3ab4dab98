"""The files that a list names."""

import os
import subprocess
import sys
import tracemalloc

import pytest

from treesnap.compat.listed_files import listed_files
from treesnap.core.model.errors import InvalidArgument

pytestmark = pytest.mark.sampled(4)

DEPTH = 16
CALLS_MAX = 20_000


@pytest.mark.parametrize(("name", "found"), [("zzz.py", []), ("a.py", None)])
def test_a_pattern_costs_no_more_than_its_length_times_the_tree(tmp_path, name, found):
    deep = tmp_path.joinpath(*["d"] * DEPTH)
    deep.mkdir(parents=True)
    (deep / "a.py").touch()
    calls = 0

    def count(frame, event, _argument):
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.endswith("listed_files.py")
        assert calls < CALLS_MAX

    sys.setprofile(count)
    try:
        named = listed_files([f"- **/**/**/**/**/**/{name}"], str(tmp_path))
    finally:
        sys.setprofile(None)

    wanted = "/".join(["d"] * DEPTH) + "/a.py"
    assert (wanted in named.files) == (found is None)


@pytest.mark.parametrize(
    "line",
    [
        f"{'./' * 5_000}a.py",
        f"a.py {'x' * 200_000}",
        f"a.py {'(' * 50_000}{')' * 50_000}",
        f"a.py {'{,' * 50_000}",
        f"a.py {':1-' * 50_000}",
        f"a.py {'a b/' * 30_000}*",
        "a.py " + "\u2192 " * 50_000,
    ],
    ids=["dots", "word", "brackets", "braces", "numbers", "blanks", "marks"],
)
def test_a_line_costs_no_more_than_its_length(tmp_path, line):
    (tmp_path / "a.py").touch()

    assert "a.py" in listed_files([f"- {line}"], str(tmp_path)).files


def test_what_a_step_will_create_is_named_in_any_form(tmp_path):
    lines = {
        "[NEW] src/a.ts": ["src/a.ts"],
        "(new) src/b.ts": ["src/b.ts"],
        "(src/c.ts)": ["src/c.ts"],
        "src/d.ts.": ["src/d.ts"],
        "src/e.ts and src/f.ts": ["src/e.ts", "src/f.ts"],
        "g.ts + h.ts": ["g.ts", "h.ts"],
        "**File:** `src/i.ts`": ["src/i.ts"],
        "src/j.ts, src/k.ts": ["src/j.ts", "src/k.ts"],
        "| src/l.ts | create |": ["src/l.ts"],
        "src/m.ts -> src/n.ts": ["src/m.ts", "src/n.ts"],
    }

    named = set(listed_files([f"- {line}" for line in lines], str(tmp_path)).files)

    assert {path for paths in lines.values() for path in paths} <= named


def test_a_name_with_blanks_that_is_to_come_is_one_file(tmp_path):
    lines = ["- my notes.md", "- docs/my notes.md"]

    assert listed_files(lines, str(tmp_path)).files == ("my notes.md", "docs/my notes.md")


def test_a_deep_path_is_named(tmp_path):
    path, fd = "d/" * 1_200, os.open(tmp_path, os.O_RDONLY)
    for _ in range(1_200):
        os.mkdir("d", dir_fd=fd)
        above, fd = fd, os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(above)
    os.close(os.open("a.py", os.O_WRONLY | os.O_CREAT, dir_fd=fd))
    os.close(fd)

    try:
        assert f"{path}a.py" in listed_files([f"- {path}a.py (new)"], str(tmp_path)).files
    finally:  # pytest's own way to remove it goes only as deep as Python's stack
        subprocess.run(["rm", "-r", tmp_path / "d"], check=True)


def test_alternatives_take_little_memory(tmp_path):
    tracemalloc.start()
    try:
        with pytest.raises(InvalidArgument):
            listed_files([f"- {{{'a,' * 5_000}}}{'x' * 5_000}"], str(tmp_path))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes < 10 << 20
