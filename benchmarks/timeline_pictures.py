"""Draws the pictures of `snap timeline` in the documentation, from a real history.

    python benchmarks/timeline_pictures.py [--directory docs/pictures]

Makes a project in which an agent worked, opens the timeline at 80 x 24, presses keys, and writes
what the screen shows as SVG.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import re
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from textual.worker import WorkerCancelled

from treesnap.core.handle import Handle
from treesnap.core.model.requests import CaptureRequest
from treesnap.core.model.reserved_tags import fact_tags
from treesnap.core.model.snapshots import SnapshotKind
from treesnap.core.ops.context import context_at
from treesnap.core.ops.create import create
from treesnap.timeline.app import Timeline, TimelineTools
from treesnap.timeline.command import lines_of_patches

PICTURES = {
    "timeline": ("j",) * 5,
    "timeline-restore": (*("j",) * 5, "r"),
    "timeline-hunks": ("j", "enter", "j", "h", "n", "m"),
    "timeline-steps": (*("j",) * 5, "w"),
}
"""The keys that are pressed before each picture."""
BEGIN_NS = 1_795_000_000_000_000_000
STEP_NS = 47_000_000_000
SIZE = (80, 24)
MAIN = """\
from pathlib import Path


def load(path: Path) -> list[float]:
    rows = path.read_text().splitlines()
    return [float(row) for row in rows]
"""
EDITED = MAIN.replace("for row in rows]", "for row in rows if row.strip()]").replace(
    "]:\n", ']:\n    """Return the numbers of a file, one in a line."""\n'
)


def write(path: Path, text: str) -> None:
    """Writes a file with a time that is the same in each run."""
    path.write_text(text)
    os.utime(path, ns=(BEGIN_NS, BEGIN_NS))


def work(root: Path, store: Path) -> None:
    """Does what an agent and a person do in half an hour."""
    moments = itertools.count(BEGIN_NS, STEP_NS)
    context = context_at(root=root, store_path=str(store), clock_ns=lambda: next(moments))
    numbers = itertools.count(1)

    def step(phase: str, label: str, session: str = "fix-loader") -> None:
        number = next(numbers)
        tags = fact_tags(host="claude", phase=phase, key=str(number))
        kind = SnapshotKind.AUTOMATIC
        create(
            context, CaptureRequest(label=label, session=session, step=number, kind=kind, tags=tags)
        )

    (root / "src").mkdir(parents=True)
    write(root / "src/load.py", MAIN)
    write(root / "data.csv", "1\n2\n\n3\n")
    write(root / "README.md", "# Averages\n")
    Handle(context).create(label="before the agent")
    step("turn", "Skip empty rows when loading")
    step("pre", "Bash: pytest -q")
    step("pre", "Edit: src/load.py")
    write(root / "src/load.py", EDITED)
    step("pre", "Write: tests/test_load.py")
    (root / "tests").mkdir()
    write(root / "tests/test_load.py", "def test_empty_rows_are_skipped(): ...\n")
    step("end", "end of the turn")
    step("turn", "Now clean up")
    step("pre", "Bash: rm -r data.csv tests")
    shutil.rmtree(root / "tests")
    (root / "data.csv").unlink()
    write(root / "src/load.py", MAIN)
    step("end", "end of the turn")


async def draw(root: Path, store: Path, keys: tuple[str, ...]) -> str:
    """Returns the screen after some keys as SVG, which asks for nothing from a network."""
    app = Timeline(
        lambda monitor: Handle(context_at(root=root, store_path=str(store), monitor=monitor)),
        TimelineTools(lines_of_patches, str),
    )
    async with app.run_test(size=SIZE) as pilot:
        for key in (None, *keys):
            if key is not None:
                await pilot.press(key)
            for _ in range(4):
                with suppress(WorkerCancelled):
                    await app.workers.wait_for_complete()
                await pilot.pause()
        svg = app.export_screenshot(title="snap timeline")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"terminal-\d+", "terminal", svg)
    return re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE).rstrip() + "\n"


def main() -> None:
    """Writes all pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(__file__).parents[1] / "docs" / "pictures"
    parser.add_argument("--directory", type=Path, default=default)
    directory = parser.parse_args().directory
    os.environ["TZ"] = "UTC"
    time.tzset()
    place = Path(tempfile.gettempdir()) / "treesnap-pictures"  # its name is in the pictures
    place.mkdir()
    try:
        work(place / "averages", place / "store")
        directory.mkdir(exist_ok=True)
        for name, keys in PICTURES.items():
            svg = asyncio.run(draw(place / "averages", place / "store", keys))
            (directory / f"{name}.svg").write_text(svg, encoding="utf-8")
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
