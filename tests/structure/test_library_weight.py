"""A program that uses the library loads nothing that only the command line needs."""

import subprocess
import sys

ONLY_THE_COMMAND_LINE = {"click", "rich", "treesnap.cli", "ulid", "yaml", "pygments"}
"""Packages that checkpoints never need; plans need the two in the middle."""
ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
ON_DEMAND = {"platformdirs", "tomlkit", "watchdog"}
"""Without a place for the store, for settings that are written, and for watching."""
PROGRAM = """
import sys
import treesnap
after_import = set(sys.modules)
root, store = sys.argv[1:]
def write(text):
    with open(root + "/a", "w") as file:
        file.write(text)
write("first" * 1000)
handle = treesnap.open(root, store)
first = handle.create().snapshot
write("second" * 1000)
handle.create()
handle.restore(first.id)
assert open(root + "/a").read() == "first" * 1000
print(*after_import)
print(*sys.modules)
"""


def test_completion_finds_the_public_names_before_they_are_used():
    program = "import treesnap; print(*dir(treesnap)); print(*treesnap.__all__)"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    found, public = map(str.split, result.stdout.splitlines())
    assert found == sorted(public)


def test_a_checkpoint_and_a_restore_load_no_command_line(tmp_path):
    (tmp_path / "root").mkdir()
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path / "root", tmp_path / "store"],
        capture_output=True,
        text=True,
        check=True,
    )
    after_import, at_the_end = (set(line.split()) for line in result.stdout.splitlines())

    assert "treesnap" in after_import
    assert not after_import & (ONLY_THE_COMMAND_LINE | ON_DEMAND | {"blake3", ZSTD})
    assert ZSTD in at_the_end
    assert not at_the_end & (ONLY_THE_COMMAND_LINE | ON_DEMAND)
