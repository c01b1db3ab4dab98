"""``snap timeline --html``: one file that any browser shows, whatever the names are."""

from __future__ import annotations

import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from treesnap.timeline.command import lines_of_patches
from treesnap.timeline.page import HistoryPage

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
    page = HistoryPage(handle, lines_of_patches, max_size_bytes=max_size_bytes)
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

    prompt = text.index("make it two</summary>")
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
        *("html", "head", "meta", "title", "style", "body", "h1", "code", "p", "main", "details"),
        *("summary", "time", "span", "pre"),
    }
    assert not any(name.startswith("on") for _, attributes in reader.tags for name in attributes)
    assert not {"\u202e", "\x1b"} & set(page)
    assert sum("alert(1)" in piece for piece in reader.text) >= 3 * ("alert" in text)


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


def test_a_browser_shows_it_and_runs_nothing_of_it(handle, history, root, tmp_path):
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("no browser is installed: chromium")
    (root / "<img src=x onerror=document.title='changed'>").write_text("<script>document.title=1")
    handle.create(label="<script>document.title = 'changed'</script>")
    path = tmp_path / "page.html"
    path.write_text(written(handle)[0])

    done = subprocess.run(
        [
            *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *(f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", path.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )

    reader = Reader(done.stdout.removeprefix("<!DOCTYPE html>"))
    assert [tag for tag, _ in reader.tags].count("details") > len(history)
    assert "+    return 2" in reader.text
    assert f"History of {handle.root}" in reader.text
    assert reader.names.isdisjoint({"img", "script"})
