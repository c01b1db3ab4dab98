"""The lines of a CREATE as models write them: what exists and is named is captured."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import treesnap
from maker_blocks import DIRECTORY, create_block, maker, reason, restore_block, sections, status
from sampling import sized
from treesnap.compat.maker import carry_out
from treesnap.compat.maker_result import Created, result_text

PATHS = ("src/a.ts", "src/b.ts", "Makefile", "docs/my plan.md", ".env", "src/[id]/page.tsx")

WORDS_FOR_NOTHING = [
    *("keine", "Keine.", "k.A.", "rien", "aucun", "nada", "ninguno", "geen", "brak", "yok"),
    *("\u043d\u0435\u0442", "\u306a\u3057", "\u306a\u3057\u3002", "\u65e0", "\uc5c6\uc74c"),
    *("nil", "void", "0", "false", "unchanged", "`skip`", "S/O", "N / A", "none/nothing"),
    *("null / none", "http://example.com"),
]
FORMS = [
    *("- $(pwd)/{}", "- @/{}", "- [WORKING_DIRECTORY]/{}", "- ~/{}"),
    "**{}**",
    "- **{}**",
    "- `{}`",
    "- **`{}`**",
    "- _{}_",
    "- ~~{}~~",
    "- [ ] {}",
    "- [x] `{}`",
    "* [X] {} (modify)",
    "1. {}: add a handler",
    "path: {}",
    "- path: {}",
    "- file={}",
    "MODIFY: {}",
    "- MODIFY {}",
    "M  {}",
    "- {} (modify)",
    "- {} -> modified",
    "- {}->modified",
    "- {} => modified",
    "- {} \u2192 modified",
    "- {} \u2014 modified",
    "- {} // why",
    "- {} # why",
    "- {},",
    "- {};",
    "- {}.",
    "- {}:12-30",
    "- {}#L12",
    "- [{}]({})",
    "- [the file]({})",
    "- <{}>",
    "- '{}'",
    '- "{}", and its tests',
    "- \u2705 {}",
    "- \U0001f4dd {}",
    "\u2022\u00a0{}",
    "-\u00a0{}\u00a0(modify)",
    "- ./{}",
    "|{}|modify|",
    "- change {} so that it compiles",
    "\u2192 {}",
    "{}, new/other.ts",
    "- {} and new/other.ts",
    "[{}]",
    "- ({})",
    "src/x.ts | {} | src/y.ts",
    "{{{}}}",
    "- @{}",
    "+++ b/{}",
    "- a/{}",
    "diff --git i/{} w/{}",
    "- root/{}",
    "\u4fee\u6539{}\u6587\u4ef6",
    "-{}",
    "*{}",
    "- {}\u200b",
    "- $PWD/{}",
    "- ${{ROOT}}/{}",
    "- %CD%/{}",
    "- <project>/{}",
    "- .../{} (modify)",
    "`\u2026/{}`",
]


def files_of(root) -> None:
    """Makes the files of PATHS, each with its path as its content."""
    for path in PATHS:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)


@pytest.fixture
def tree(root):
    """The root with the files of PATHS."""
    files_of(root)
    return root


def block_of(root, *lines: str, name: str = "one") -> str:
    """Returns a CREATE whose list has these lines."""
    return create_block(root, name, "XX").replace("- XX\n", "".join(f"{line}\n" for line in lines))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", FORMS)
def test_an_existing_file_is_captured_in_any_form(tree, run, form):
    line = form.replace("{{", "{").replace("}}", "}").replace("{}", "src/a.ts")
    text = run(block_of(tree, line))
    assert status(text) == "CREATE_SUCCESS", text
    (tree / "src/a.ts").write_text("broken")

    assert status(run(restore_block(tree, "one"))) == "RESTORE_SUCCESS"
    assert (tree / "src/a.ts").read_text() == "src/a.ts", text


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("- src/*.ts", {"src/a.ts", "src/b.ts"}),
        ("- `src/*.ts` (all of them)", {"src/a.ts", "src/b.ts"}),
        ("- **/*.md", {"docs/my plan.md", "notes/plan.md"}),
        ("- src/{a,b}.ts", {"src/a.ts", "src/b.ts"}),
        ("- src/a.ts..src/b.ts", {"src/a.ts", "src/b.ts"}),
        ("- src/a.ts/src/b.ts", {"src/a.ts", "src/b.ts"}),
        ("- src/a.ts, src/b.ts and Makefile", {"src/a.ts", "src/b.ts", "Makefile"}),
        ("- the plan, docs/my plan.md, grows", {"docs/my plan.md"}),
        ("- [plan](docs/my%20plan.md)", {"docs/my plan.md"}),
        ("- `.env`: the key", {".env"}),
        ("- src/[id]/page.tsx -> modified", {"src/[id]/page.tsx"}),
    ],
)
def test_several_files_of_a_line_are_captured(tree, store, line, expected):
    result = carry_out(block_of(tree, line), store=store)

    assert isinstance(result, Created), result
    assert expected == {path for path, state in result.files if state == "captured"}


def test_a_file_to_come_is_deleted_whatever_its_line_looks_like(tree, run):
    lines = ("- **new/a.ts**", "- [ ] new/b.ts", "- create new/c.ts", "- new/d.ts -> added")
    assert status(run(block_of(tree, *lines))) == "CREATE_SUCCESS"
    (tree / "new").mkdir()
    for name in "abcd":
        (tree / f"new/{name}.ts").write_text("new")

    run(restore_block(tree, "one"))

    assert list((tree / "new").iterdir()) == []


@pytest.mark.parametrize(
    "line",
    [
        "- src/a.ts, src/new.ts",
        "- `src/a.ts`, `src/new.ts` (both)",
        "- src/a.ts and src/new.ts.",
        "- src/a.ts -> src/new.ts (rename)",
        "- rename src/a.ts to src/new.ts",
        "- src/{a,new}.ts",
        "[src/a.ts, src/new.ts]",
        '["src/a.ts", "src/new.ts"]',
        '- {"path": "src/a.ts", "test": "src/new.ts"}',
        "| src/a.ts | src/new.ts |",
    ],
)
def test_a_file_to_come_is_deleted_that_is_named_beside_another(tree, run, line):
    text = run(block_of(tree, line))
    assert "- src/new.ts: did_not_exist (will be created)" in text
    (tree / "src/new.ts").write_text("new")

    run(restore_block(tree, "one"))

    assert not (tree / "src/new.ts").exists()
    assert (tree / "src/a.ts").exists()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("- src/a.ts:12-30", ["src/a.ts"]),
        ("- docs/my plan.md (modified)", ["docs/my plan.md (modified)", "docs/my plan.md"]),
        ("- src/a.ts: fix read/write, e.g. https://example.com/a.html, v1.2", ["src/a.ts"]),
        ("- src/a.ts: not ../b.ts, /etc/new.conf or src/b.ts/new.ts", ["src/a.ts"]),
    ],
)
def test_no_other_word_of_a_line_is_taken_for_a_file_to_come(tree, store, line, expected):
    result = carry_out(block_of(tree, line), store=store)

    assert isinstance(result, Created), result
    assert [path for path, _ in result.files] == expected


@pytest.mark.parametrize(
    "lines",
    [
        ("- none",),
        ("- N/A",),
        ("the usual files",),
        ("- all of them", "- **and more**"),
        ("(none)", "- [none]", "- _none_", "None."),
        ("- (empty)", "- unknown.", "- e.g."),
        *((f"- {word}",) for word in WORDS_FOR_NOTHING),
        ("- keine", "- keine"),
    ],
)
def test_a_list_of_nothing_is_refused(tree, store, run, lines):
    text = run(block_of(tree, *lines))

    assert (status(text), reason(text)) == ("CREATE_FAILED", "invalid_argument")
    assert not store.exists()


@pytest.mark.parametrize("above", ["[id]", "@", "~"])
def test_a_file_of_the_same_name_above_a_directory_with_an_odd_one_is_not_captured(
    tree, store, above
):
    (tree / above).mkdir()
    for path in ("page.ts", f"{above}/page.ts"):
        (tree / path).write_text(path)

    result = carry_out(block_of(tree, f"- {above}/page.ts"), store=store)

    assert isinstance(result, Created)
    assert [path for path, _ in result.files] == [f"{above}/page.ts"]


@pytest.mark.parametrize("line", ["Makefile", "LICENSE", ".env", "nothing.py", "src/nothing"])
def test_one_file_to_come_is_believed(tree, run, line):
    (tree / "Makefile").unlink()
    (tree / ".env").unlink()

    assert status(run(block_of(tree, f"- {line}"))) == "CREATE_SUCCESS"


def test_an_unclear_line_is_answered(tree, store, run):
    block = block_of(tree, "- src/a.ts", "- whatever the step may need", "and so on")

    details = sections(run(block))["CHECKPOINT DETAILS"]
    assert "- src/a.ts: captured" in details
    assert details[details.index("Unclear, nothing of it exists:") + 1 :] == [
        "- - whatever the step may need",
        "- and so on",
    ]


def test_no_more_is_captured_than_the_longest_path(tree, store):
    (tree / "a.ts").write_text("another")
    (tree / "ts").write_text("another")
    result = carry_out(block_of(tree, "- src/a.ts", "- x-a.ts", "- a.tsx"), store=store)

    assert isinstance(result, Created)
    assert [path for path, state in result.files if state == "captured"] == ["src/a.ts"]


@settings(
    max_examples=sized(60, 2000),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_no_decoration_loses_a_file(tree, store, data):
    """A file that a line names is captured, or the block answers about the line."""
    around = [
        *(("*" * n, "*" * n) for n in (1, 2, 3)),
        *[("`", "`"), ("_", "_"), ("<", ">"), ("(", ")"), ("[", "]"), ('"', '"'), ("{", "}")],
        *[("", ","), ("", "."), ("", ":7"), ("./", ""), ("", " (new)"), ("", "\u00a0# why")],
        *[("path: ", ""), ("MODIFY:", ""), ("[ ] ", ""), ("\u2705 ", ""), ("see [x](", ")")],
        *[("- ", ""), ("3. ", ""), ("\u2022\t", ""), ("", " -> ok"), ("", "->ok"), ("~~", "~~")],
        *[
            ("old.ts, ", ""),
            ("", ", new.ts"),
            ("file ", ""),
            ("\u2014", "\u2014"),
            ("", " \u2192 x"),
        ],
        *[("", ":12-30"), ("", "#L12"), ("|", "|modify|"), ("@", ""), ("", "\u200b"), ("'", "'")],
        *[("", " // why"), ("", " and src/new.ts"), ("\t", " "), ("> ", ""), ("M  ", "")],
    ]
    named = data.draw(st.lists(st.sampled_from(PATHS), min_size=1, max_size=3, unique=True))
    lines = []
    for path in named:
        line = path
        for before, after in data.draw(st.lists(st.sampled_from(around), max_size=4)):
            line = f"{before}{line}{after}"
        lines.append(line)

    result = carry_out(block_of(tree, *lines, name="fuzz"), store=store)

    assert isinstance(result, Created), result
    handle = treesnap.open(tree, store)
    held = {path.decode() for path in (item.name for item in handle.ls("fuzz", recursive=True))}
    handle.delete("fuzz")
    answered = result_text(result)
    for path, line in zip(named, lines, strict=True):
        assert path in held or line in result.unclear, (line, answered)
    assert held


KILLED = """
import os, signal, sys
from treesnap.compat.maker import carry_out

moment, first, block, store = sys.argv[1:]

def look(event, arguments):
    if event != moment:
        return
    name = os.fsdecode(arguments[0 if moment == "os.remove" else 1])
    if first in name or name.endswith("one.json"):
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(look)
carry_out(block, store=store, metadata=True)
"""
"""Replaces a checkpoint, and kills itself at a moment of that."""


class TestTheRetry:
    """The step is tried again with one more file, under the same id."""

    def test_succeeds_and_holds_both(self, tree, store, run):
        run(block_of(tree, "- src/a.ts"))

        text = run(block_of(tree, "- src/a.ts", "- src/b.ts", "- src/new.ts"), metadata=True)

        assert status(text) == "CREATE_SUCCESS", text
        assert [item.name for item in treesnap.open(tree, store).list()] == ["one"]
        for path in ("src/a.ts", "src/b.ts", "src/new.ts"):
            (tree / path).write_text("broken")
        assert status(run(restore_block(tree, "one"))) == "RESTORE_SUCCESS"
        assert (tree / "src/a.ts").read_text() == "src/a.ts"
        assert (tree / "src/b.ts").read_text() == "src/b.ts"
        assert not (tree / "src/new.ts").exists()

    def test_succeeds_after_a_restore(self, tree, run):
        run(block_of(tree, "- src/a.ts"))
        (tree / "src/a.ts").write_text("broken")
        run(restore_block(tree, "one"))

        assert status(run(block_of(tree, "- src/a.ts", "- src/b.ts"))) == "CREATE_SUCCESS"

    def test_succeeds_when_the_first_is_pinned(self, tree, store, run):
        run(block_of(tree, "- src/a.ts"))
        handle = treesnap.open(tree, store)
        pinned = handle.pin("one")

        text = run(block_of(tree, "- src/a.ts", "- src/b.ts"))

        assert status(text) == "CREATE_SUCCESS", text
        assert handle.resolve(pinned.id).pinned
        (tree / "src/b.ts").write_text("broken")
        assert status(run(restore_block(tree, "one"))) == "RESTORE_SUCCESS"
        assert (tree / "src/b.ts").read_text() == "src/b.ts"

    @pytest.mark.parametrize("moment", ["os.remove", "os.rename"])
    def test_is_whole_when_it_is_killed_between_the_two(self, tree, store, run, moment):
        """Killed before the metadata is in its place, or before the first checkpoint is removed."""
        run(block_of(tree, "- src/a.ts"), metadata=True)
        (first,) = treesnap.open(tree, store).list()
        file = tree / ".maker-checkpoints/metadata/one.json"
        block = block_of(tree, "- src/a.ts", "- src/b.ts")

        ran = subprocess.run(
            [sys.executable, "-c", KILLED, moment, first.id, block, str(store)], check=False
        )

        assert ran.returncode == -signal.SIGKILL
        assert len(treesnap.open(tree, store).list()) == 2
        named = json.loads(file.read_text())["snapshot_id"]
        assert named in {item.id for item in treesnap.open(tree, store).list()}
        (tree / "src/b.ts").write_text("broken")
        assert status(run(restore_block(tree, "one"))) == "RESTORE_SUCCESS"
        assert (tree / "src/b.ts").read_text() == "src/b.ts"
        assert status(run(block, metadata=True)) == "CREATE_SUCCESS"

    def test_keeps_the_first_when_its_files_changed(self, tree, store, run):
        run(block_of(tree, "- src/a.ts"))
        (tree / "src/a.ts").write_text("half a step")

        text = run(block_of(tree, "- src/a.ts", "- src/b.ts"))

        assert reason(text) == "name_taken"
        run(restore_block(tree, "one"))
        assert (tree / "src/a.ts").read_text() == "src/a.ts"

    def test_keeps_the_first_when_the_second_cannot_be_taken(self, tree, store, run):
        run(block_of(tree, "- src/a.ts"))
        (tree / ".snapignore").write_text("src/b.ts\n")

        assert status(run(block_of(tree, "- src/a.ts", "- src/b.ts"))) == "CREATE_FAILED"
        (tree / "src/a.ts").write_text("broken")
        run(restore_block(tree, "one"))
        assert (tree / "src/a.ts").read_text() == "src/a.ts"


class TestAWindowsDirectory:
    """A sender on Windows, whose directory is mounted here, is told by ``-C`` which one it is."""

    def test_is_the_one_of_the_command(self, tree, store):
        block = block_of(DIRECTORY, "- src/a.ts", f"- {DIRECTORY}/src/b.ts", r"- src\new.ts")

        code, text = maker(block, store, options=("-C", tree))

        assert (code, status(text)) == (0, "CREATE_SUCCESS"), text
        lines = sections(text)["CHECKPOINT DETAILS"]
        assert {"- src/a.ts: captured", "- src/b.ts: captured"} <= set(lines)
        assert "- src/new.ts: did_not_exist (will be created)" in lines
        (tree / "src/a.ts").write_text("broken")
        code, text = maker(restore_block(DIRECTORY, "one"), store, options=("-C", tree))
        assert (code, (tree / "src/a.ts").read_text()) == (0, "src/a.ts")

    def test_needs_the_option(self, tree, run):
        assert "is a Windows path" in run(block_of(DIRECTORY, "- src/a.ts"))


@pytest.mark.parametrize(
    "form", ["**[{}]**", "**[{}]:**", "[**{}**]", "**{}**", "**{}:**", "__[{}]__", "### **[{}]**"]
)
def test_names_of_sections_may_be_bold(tree, run, form):
    def bold(block: str) -> str:
        return re.sub(r"^\[([A-Z_]+)\]$", lambda m: form.format(m[1]), block, flags=re.MULTILINE)

    assert status(run(bold(block_of(tree, "- src/a.ts")))) == "CREATE_SUCCESS"
    inline = bold(restore_block(tree, "one")).replace("\none\n", " one\n")
    assert status(run(inline)) == "RESTORE_SUCCESS"
