"""``snap timeline --html``: one file that any browser shows, whatever the names are."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from treesnap.cli.output.patches import patches
from treesnap.core.handle import Handle
from treesnap.core.model.errors import NotFound
from treesnap.core.model.quantities import time_text
from treesnap.timeline import page as page_module
from treesnap.timeline.page import HistoryPage

pytestmark = pytest.mark.sampled(10)

VOID = {"meta", "br", "link", "img", "input"}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


class Reader(HTMLParser):
    """Collects what a page consists of, and insists that every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    @property
    def names(self) -> set[str]:
        return {tag for tag, _ in self.tags}


def written(handle, max_size_bytes=10_000_000) -> tuple[str, HistoryPage]:
    page = HistoryPage(handle, patches, max_size_bytes=max_size_bytes)
    return "".join(page.pieces()), page


def test_it_has_every_snapshot_and_what_it_changed(handle, history):
    text, page = written(handle)

    reader = Reader(text)
    assert page.snapshots == len(history)
    ids = [attributes.get("id") for tag, attributes in reader.tags if tag == "details"]
    assert [identity for identity in ids if identity] == list(history.values())[::-1]
    assert "+    return 2" in reader.text
    assert "claude, session s1" in "".join(reader.text)
    assert page.differences > len(history)


def test_steps_are_inside_their_prompt(handle, history):
    text, _ = written(handle)

    prompt = text.index("make it two <small")
    end = text.index("before the prompt")
    inside = [text.index(f'id="{history[name]}"') for name in ("edit", "write", "end", "prompt")]
    assert all(prompt < place < end for place in inside)
    assert text.index(f'id="{history["hand"]}"') > end


def test_it_has_neither_scripts_nor_addresses(handle, history):
    text, _ = written(handle)

    reader = Reader(text)
    assert reader.names.isdisjoint({"script", "link", "img", "iframe", "a", "form", "object"})
    assert not any(
        name.startswith("on") or name in {"src", "href"}
        for _, attributes in reader.tags
        for name in attributes
    )
    assert "http://" not in text
    assert "https://" not in text
    assert "@import" not in text
    assert "default-src 'none'" in text


HOSTILE = [
    "<script>alert(1)</script>",
    '"onmouseover="alert(1)',
    "</pre></details><img src=x onerror=alert(1)>",
    "&lt;b&gt;",
    "line\nbreak",
    "\u202ereversed",
    "\x1b[2J",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_labels_and_contents_are_text(handle, root, text):
    (root / text.replace("/", "|")).write_text(text + "\n")
    handle.create(label=text)

    page, _ = written(handle)

    reader = Reader(page)
    assert reader.names <= {
        *("html", "head", "meta", "title", "style", "body", "header", "main", "section", "p"),
        *("h1", "h2", "code", "details", "summary", "time", "span", "i", "pre", "b", "ins", "del"),
        *("svg", "path", "rect", "input", "label"),
    }
    assert not any(name.startswith("on") for _, attributes in reader.tags for name in attributes)
    assert not {"\u202e", "\x1b"} & set(page)
    assert sum("alert(1)" in piece for piece in reader.text) >= 3 * ("alert" in text)


def test_no_text_of_a_root_is_in_an_attribute_or_a_style(handle, root):
    """There it could be more than text: quotation marks and braces are no different there."""
    (root / "MARKED} * { color: red").write_text("MARKED\n")
    handle.create(label="MARKED", session="MARKED", tags={"MARKED": "MARKED"})
    handle.create(label="MARKED")

    page, _ = written(handle)

    reader = Reader(page)
    assert "MARKED" in "".join(reader.text)
    assert not any("MARKED" in str(attributes) for _, attributes in reader.tags)
    assert "MARKED" not in page[page.index("<style>") : page.index("</style>")]


def test_a_prompt_says_how_much_it_changed(handle, history):
    text, _ = written(handle)

    summary = text[text.index("make it two") :].partition("</summary>")[0]
    assert "3 steps" in summary
    assert "2 paths" in summary
    assert "<ins>+2</ins> <del>-1</del>" in summary


def test_neighbouring_lines_of_one_kind_are_one_element(handle, root):
    (root / "notes.txt").write_text("one\n-- two\n")
    handle.create()
    (root / "notes.txt").write_text("three\nfour\n")
    handle.create()

    text, _ = written(handle)

    assert "<del>-one\n--- two</del><ins>+three\n+four</ins>" in text


def test_it_shows_when_snapshots_were_taken(handle, history):
    text, _ = written(handle)

    reader = Reader(text)
    pictures = [attributes["class"] for tag, attributes in reader.tags if tag == "svg"]
    assert pictures[0] == "history"
    assert set(pictures[1:]) == {"strip"}
    shapes = {attributes["class"] for tag, attributes in reader.tags if tag == "path"}
    assert shapes == {"prompt", "step", "other", "new"}
    assert "6 snapshots, 1 session, 1 prompt, newest first." in "".join(reader.text)


def test_days_have_headings_and_sessions_their_places_in_them(handle, history):
    text, _ = written(handle)

    snapshot = handle.show(history["after"])
    day = time_text(snapshot.record.created_at_ns, "%A, %Y-%m-%d")
    assert text.index(f"<h2>{day} ") < text.index("claude, session s1")


def test_what_was_taken_by_hand_is_divided_by_days_and_drawn_in_blocks(handle, root, monkeypatch):
    monkeypatch.setattr(page_module, "ROWS_MAX", 2)
    noon_ns = 1_700_000_000 * 10**9
    for number in range(5):
        (root / "file").write_text(str(number))
        at_ns = noon_ns + number // 4 * 86_400 * 10**9
        Handle(handle.context._replace(clock_ns=lambda at_ns=at_ns: at_ns)).create()

    text, _ = written(handle)

    days = [time_text(noon_ns + day * 86_400 * 10**9, "%A, %Y-%m-%d") for day in (1, 0)]
    newer, older = (text.index(f"<h2>{day} ") for day in days)
    assert newer < older
    assert text.count('<div class="rows', older) == 2
    assert text.count('<details class="row', newer, older) == 1


def test_a_long_history_shows_its_prompts_as_an_outline(handle, history, monkeypatch):
    monkeypatch.setattr(page_module, "OPEN_MAX", len(history))
    assert re.search('<details class="turn[^"]*" open>', written(handle)[0])
    monkeypatch.setattr(page_module, "OPEN_MAX", len(history) - 1)
    assert re.search('<details class="turn[^"]*">', written(handle)[0])


def test_content_that_is_gone_meanwhile_is_a_note(handle, history):
    def patches_of_deleted(*_):
        raise NotFound("It was deleted meanwhile")
        yield b""

    page = HistoryPage(handle, patches_of_deleted, max_size_bytes=10_000)
    text = "".join(page.pieces())

    assert text.count("Content of it was deleted") == len(history)
    Reader(text)


def test_names_that_are_not_utf8_are_escaped(handle, root):
    (root / "caf\udce9").touch()
    handle.create()

    assert "caf\\xe9" in written(handle)[0]


def test_differences_stop_at_the_size(handle, root):
    for number in range(20):
        (root / "notes.txt").write_text(f"{number}\n" * 3000)
        handle.create(label=f"number {number}")
    whole, _ = written(handle)

    text, page = written(handle, max_size_bytes=100_000)

    assert len(text) < 120_000 < len(whole)
    assert page.snapshots == 20
    assert page.differences > 0
    assert page.differences_without > 0
    assert text.count("number ") == 20
    assert "The page is full. Left out:" in text
    Reader(text)


def test_without_room_only_the_rows_are_there(handle, history):
    text, page = written(handle, max_size_bytes=0)

    assert (page.snapshots, page.snapshots_without) == (len(history), len(history))
    assert "the changes of 6 snapshots" in text


def test_no_snapshots_are_a_page_too(handle):
    text, page = written(handle)

    assert page.snapshots == 0
    assert "0 snapshots" in "".join(Reader(text).text)


@pytest.fixture
def dump(tmp_path):
    """Returns the document that a browser makes of a page, at a part of it if one is given."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("no browser is installed: chromium")
    path = tmp_path / "page.html"

    def shown(text: str, part: str = "") -> str:
        path.write_text(text)
        done = subprocess.run(
            [
                *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
                "--virtual-time-budget=5000",
                *(f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", path.as_uri() + part),
            ],
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        )
        return done.stdout.removeprefix("<!DOCTYPE html>")

    return shown


def test_a_browser_shows_it_and_runs_nothing_of_it(handle, history, root, dump):
    (root / "<img src=x onerror=document.title='changed'>").write_text("<script>document.title=1")
    handle.create(label="<script>document.title = 'changed'</script>")

    reader = Reader(dump(written(handle)[0]))

    assert [tag for tag, _ in reader.tags].count("details") > len(history)
    assert "+    return 2" in reader.text
    assert f"History of {handle.root}" in reader.text
    assert reader.names.isdisjoint({"img", "script"})


def test_a_browser_opens_what_its_search_finds(handle, history, dump):
    text = written(handle)[0].replace(" open>", ">")

    reader = Reader(dump(text, "#:~:text=return%202"))

    opened = [attributes["class"] for _, attributes in reader.tags if "open" in attributes]
    assert [name.split()[0] for name in opened] == ["turn", "row"]


def test_the_only_difference_of_a_snapshot_is_open_in_it(handle, root):
    """Of several, each is closed."""
    handle.create()
    (root / "one").write_text("1\n")
    handle.create()
    (root / "one").write_text("2\n")
    (root / "two").write_text("2\n")
    handle.create()

    reader = Reader(written(handle)[0])

    shown = [tag for tag, item in reader.tags if item.get("class", "").startswith("change ")]
    assert shown[:3] == ["details", "details", "div"]
