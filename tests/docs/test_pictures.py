"""Pictures that a script makes of a real session."""

from __future__ import annotations

import html
import importlib.util
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"


def recorder():
    specification = importlib.util.spec_from_file_location("record", PICTURES / "record.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def text_of(svg: str) -> str:
    return html.unescape("".join(re.findall(r">([^<]*)</text>", svg))).replace("\xa0", " ")


def test_picture_shows_the_session_of_the_readme():
    """Run docs/pictures/record.py after a change of that session."""
    shown = text_of((PICTURES / "session.svg").read_text())

    commands = recorder().commands()
    assert len(commands) >= 5
    assert [command for command in commands if f"$ {command}" not in shown] == []
    assert "1,501 created" in shown
    assert "Tidying" not in shown


@pytest.mark.parametrize("name", recorder().PICTURES)
def test_picture_shows_its_commands_and_no_failure(name):
    """Run docs/pictures/record.py after a change of what they print."""
    shown = text_of((PICTURES / f"{name}.svg").read_text())

    typed = recorder().PICTURES[name]
    assert [command for command in typed if f"$ {command}" not in shown] == []
    assert "clean up" in shown
    assert "hint:" not in shown


def test_picture_of_progress_shows_its_commands_and_bars():
    """Run docs/pictures/record.py after a change of what progress shows."""
    shown = text_of((PICTURES / "progress.svg").read_text())

    assert [command for command in recorder().PROGRESS if f"$ {command}" not in shown] == []
    for text in ("Reading ", "Preparing ", " of 4 files", " of 1.0 GiB", "MiB/s", "4 created"):
        assert text in shown
    assert "hint:" not in shown


def test_moving_session_is_the_still_one_and_loads_nothing():
    """Run docs/pictures/record.py after a change of the session."""
    still = (PICTURES / "session.svg").read_text()
    moving = (PICTURES / "session-moving.svg").read_text()

    assert moving == recorder().moving(still, "session")
    assert text_of(moving) == text_of(still)
    ET.fromstring(moving)
    assert not re.search(r"url\((?!#)|<script|<image|href", moving)
    before, motion = moving.split("@media (prefers-reduced-motion: no-preference)")
    assert "animation" not in before
    assert motion.count("@keyframes") == moving.count('<clipPath id="session-line-')


def test_session_is_recorded_anew(tmp_path):
    shown = recorder().session(["mkdir d && cd d", "snap create -q -m x", "snap list"], tmp_path)

    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert lines[0] == "$ mkdir d && cd d"
    assert any(line.endswith("  x") or "manual" in line for line in lines)


def test_bars_are_kept_as_they_were_halfway():
    erased = "\r\x1b[1A\x1b[2K"
    printed = f"$ a\r\n10 %\r\x1b[2K50 %\r\x1b[2K90 %\r\n{erased}done\r\n"

    assert recorder().with_bars(printed * 2) == "$ a\r\n50 %\ndone\r\n" * 2
    assert recorder().with_bars("no bar\r\n") == "no bar\r\n"


def test_what_progress_erased_is_not_seen():
    as_seen = recorder().as_seen

    assert as_seen("bar 10 %\r\x1b[2Kbar 20 %\r\x1b[2Kdone\r\n") == "done\n"
    assert as_seen("one\r\ntwo\r\n\x1b[1A\x1b[2Kthree") == "one\nthree\n"


def test_curves_of_many_checkpoints_take_most_of_their_panels():
    """A limit that an axis cannot have makes one of them a flat line at the edge."""
    drawing = (PICTURES.parent / "benchmarks" / "checkpoints.svg").read_text()
    coordinates = re.compile(r"[ML] [\d.]+ ([\d.]+)")
    for panel in re.split(r'<g id="axes_\d">', drawing)[1:]:
        frame, *paths = re.findall(r'<path d="([^"]+)"([^>]+)/>', panel, re.DOTALL)
        bottom, _, top, _ = map(float, coordinates.findall(frame[0]))
        curves = [
            coordinates.findall(path) for path, style in paths if "stroke-width: 1.5" in style
        ]
        heights = [float(y) for curve in curves if len(curve) > 2 for y in curve]
        assert max(heights) - min(heights) > 0.3 * (bottom - top)


def test_first_page_of_the_site_shows_the_product_before_its_lists():
    page = (PICTURES.parent / "index.md").read_text()

    shown = ["`pipx install .`", "pictures/session-moving.svg", "doors/data.md", "doors/agents.md"]
    places = [page.index(text) for text in [*shown, "doors/servers.md", "## More"]]
    assert places == sorted(places)
