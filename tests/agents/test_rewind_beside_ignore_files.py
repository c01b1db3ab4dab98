"""What was excluded for a while, or is by now, in the rewind of an agent's work."""

from __future__ import annotations

import random

import pytest

from sampling import sized
from test_rewind_of_many import POST, PRE, TURN, Place, verdicts
from treesnap.agents.attribution import Whose
from treesnap.agents.sessions import agent_session

pytestmark = pytest.mark.sampled(10)


@pytest.fixture
def place(tmp_path) -> Place:
    place = Place(tmp_path)
    place.write("src__a", "first")
    place.write("src__keep", "first")
    return place


@pytest.mark.parametrize("rules", ["src/\n", "a\n"])
def test_what_the_user_wrote_while_it_was_excluded_is_kept(place, rules):
    place.tell(TURN)
    place.call(src__a="agent")
    place.write(".snapignore", rules)
    place.call(y="agent")
    place.write("src__a", "user")
    place.write(".snapignore", None)

    result = place.rewind()

    assert place.files() == {"src/a": "user", "src/keep": "first"}
    assert verdicts(result)[b"src/a"] == "unknown"
    assert b"src/a" in {change.path for change in result.restore.conflicts}
    place.rewind(widened=frozenset({Whose.UNKNOWN}))
    assert place.files() == {"src/a": "first", "src/keep": "first"}


def test_also_under_what_the_agent_wrote_over_it_later(place):
    place.tell(TURN)
    place.call(src__a="agent")
    place.write(".snapignore", "src/\n")
    place.call(y="agent")
    place.write("src__a", "user")
    place.write(".snapignore", None)
    place.call(z="agent")
    place.call(src__a="agent again")

    place.rewind()

    assert place.files() == {"src/a": "user", "src/keep": "first"}


def test_what_changed_only_while_it_was_excluded_is_named(place):
    place.tell(TURN)
    place.write(".snapignore", "src/\n")
    place.call(y="agent")
    place.call(src__a="not seen", src__new="not seen")
    place.write(".snapignore", None)

    result = place.rewind()

    found = verdicts(result)
    assert (found[b"src/a"], found[b"src/new"]) == ("unknown", "unknown")
    assert place.files()["src/a"] == "not seen"


def test_what_did_not_change_while_it_was_excluded_goes_back(place):
    place.tell(TURN)
    place.call(src__a="agent", gen__x="agent")
    place.write(".snapignore", "src/\ngen/\n")
    place.call(y="agent")
    place.write(".snapignore", None)

    result = place.rewind()

    assert place.files() == {"src/a": "first", "src/keep": "first"}
    assert {verdicts(result)[path] for path in (b"src/a", b"gen/x")} == {"undone"}


def test_what_is_excluded_by_now_is_not_called_undone(place):
    place.tell(TURN)
    place.call(src__a="agent", gen__x="agent")
    place.write(".snapignore", "src/\ngen/\n")

    for dry_run in (True, False):
        result = place.rewind(dry_run=dry_run)
        found = verdicts(result)
        assert {found[path] for path in (b"src/a", b"gen", b"gen/x")} == {"excluded"}
    assert place.files()["src/a"] == "agent"


@pytest.mark.parametrize("rules", ["src/\ngen/\n", "a\nx\n"])
def test_an_ignore_file_of_the_agent_hides_none_of_its_work(place, rules):
    before = place.files()
    place.tell(TURN)
    place.call(src__a="agent", gen__x="agent")
    place.call(**{".snapignore": rules})
    place.call(z="agent")
    after = place.files()

    result = place.rewind()

    assert place.files() == before
    assert {verdicts(result)[path] for path in (b"src/a", b"gen/x", b".snapignore")} == {"undone"}
    assert result.restore.restored + result.restore.created + result.restore.deleted >= 4
    assert result.restores == 2
    place.handle.undo()
    place.handle.undo()
    assert place.files() == after


def test_what_the_agent_did_unseen_is_kept_and_named(place):
    place.tell(TURN)
    place.call(src__a="agent")
    place.tell(PRE, "a", "k")
    place.write(".snapignore", "src/\n")
    place.tell(POST, "a", "k")
    place.call(src__a="agent, or the user")

    result = place.rewind()

    assert verdicts(result)[b"src/a"] == "unknown"
    assert place.files() == {"src/a": "agent, or the user", "src/keep": "first"}


@pytest.mark.parametrize("seed", range(sized(12, 400)))
def test_no_version_of_the_user_is_lost_whatever_was_excluded_when(seed, place):
    """The agent writes in calls alone, and the user between them; both write ignore files."""
    chooser = random.Random(seed)
    paths = ["src/a", "src/keep", "gen/x", "gen/y"]
    authors: dict[str | None, str] = {None: "user", "first": "user"}

    def change(who: str) -> None:
        for path in chooser.sample(paths, chooser.randrange(3)):
            text = f"{who} {len(authors)}"
            authors[text] = who
            place.write(path.replace("/", "__"), text)
        if chooser.random() < 0.3:
            rules = ["src/\n", "gen/\n", "a\n", "src/\n!src/\n", "*/x\n", "\n"]
            place.write(".snapignore", chooser.choice(rules))

    for _ in range(chooser.randrange(3, 12)):
        if chooser.random() < 0.4:
            change("user")
        if chooser.random() < 0.3:
            place.tell(TURN)
        place.tell(PRE, "a", "k")
        change("agent")
        place.tell(POST, "a", "k")
        if chooser.random() < 0.3:
            change("user")
    place.tell(TURN)
    (place.root / ".snapignore").unlink(missing_ok=True)  # so that a rewind may change anything
    before = place.files()
    turns = sum(step.phase is TURN for step in agent_session(place.context, "a").steps)

    place.rewind(f"{chooser.randrange(1, turns + 1)}")

    after = place.files()
    lost = [path for path, text in before.items() if after.get(path) != text]
    assert [path for path in lost if authors[before[path]] == "user"] == []
