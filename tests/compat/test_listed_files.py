"""The files that a list names."""

import sys

import pytest

from treesnap.compat.listed_files import listed_files

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
