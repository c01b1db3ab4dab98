"""A store is data: a command in any field of any record of a store is never run.

A store with everything in it is handed over, as a copy. In the records of one kind a command stands
in each text that the reader accepts, once in all of them and once in those that lead nowhere, so
that the rest still works. Then every command of ``snap`` is run, and nothing may have happened.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import treesnap
from sampling import sized
from treesnap.cli.commands import COMMANDS
from treesnap.core.codec.envelope import CHECKSUM_SIZE, HEADER_SIZE, Format, seal
from treesnap.core.codec.message import pack, unpack
from treesnap.core.codec.root_files import GAPS, HOLD, Gap, HoldRecord
from treesnap.core.codec.snapshot import SNAPSHOT, snapshot_id, state_format
from treesnap.core.model.snapshots import SnapshotId
from treesnap.core.store.roots import ROOT
from treesnap.plans.record import PLAN
from treesnap.remote.records import PUSHED, REMOTE

SECRET = {"TREESNAP_REMOTE_PASSPHRASE": "correct horse"}
LEADING = {"root", "root_path", "path", "url", "snapshot", "version", "id", "mode", "earlier"}
"""Fields by which other things are found: with a command there, a record is of nothing."""
FORMATS = {  # a history, a journal and the like have no field that takes any text
    "snapshot": SNAPSHOT,
    "state": None,
    "root": ROOT,
    "remote": REMOTE,
    "plan": PLAN,
    "hold": HOLD,
    "gaps": GAPS,
    "pushed": PUSHED,
}
INTERACTIVE = {"timeline", "mount", "umount", "mcp", "watch", "completion", "schedule"}
"""Commands that wait for a person, or are not about a store's content."""

WORDS = [
    "",
    "create -m again",
    "list",
    "log",
    "log -p",
    "show latest",
    "ls latest",
    "cat latest file",
    "find *",
    "grep one",
    "blame file",
    "status",
    "diff",
    "diff latest~1 latest",
    "archive latest -o {out}/archive.tar",
    "import {root} --name copied",
    "describe latest words",
    "tag latest a=b",
    "pin latest",
    "unpin latest",
    "stats",
    "du latest",
    "doctor",
    "config",
    "config exclude",
    "store info",
    "store move {out}/moved",
    "store copy {out}/copy",
    "root list",
    "plan list --all",
    "plan show latest",
    "plan show latest --output 1",
    "plan checkpoints latest",
    "plan resume latest",
    "plan resume release",
    "plan checkpoint latest -m here",
    "plan correct latest --mode revert",
    "plan apply latest",
    "plan delete latest",
    "remote list",
    "remote show disk",
    "remote snapshots disk",
    "remote check disk",
    "remote policy disk",
    "remote key list disk",
    "remote gc disk",
    "remote verify disk",
    "remote prune disk --keep-last 5 --dry-run",
    "push disk",
    "fetch disk",
    "pull disk",
    "clone disk {out}/cloned",
    "verify",
    "verify --read-data",
    "prune --keep-last 5 --dry-run",
    "fork latest {out}/fork",
    "adopt {out}/fork",
    "revert latest~1..latest",
    "restore latest~1",
    "restore latest --to {out}/restored",
    "undo",
    "redo",
    "rewind",
    "prompts",
    "run -- true",
    "hook claude",
    "agent status",
    "session list",
    "session summary --session-id 3e9be9cb-8f41-4b3c-8a84-7b7d9fd7dcbd",
    "maker",
    "remote remove disk",
    "root move {root} {root}",
    "delete latest",
    "gc",
    "verify --repair",
    "root forget {root} --force",
]

PLAN_TEXT = """\
name: release
steps:
  - {name: one, run: echo said}
  - {name: two, run: test -e never}
"""


@pytest.fixture
def handed_over(snap, root, store, environment, tmp_path) -> Path:
    """A store with records of all kinds, and a remote, as another user made them."""
    (root / "file").write_text("one\n")
    (root / "other").write_text("other\n")
    snap("create", "-q", "--name", "first", "-m", "label", "--session", "s", "--step", "1")
    (root / "file").write_text("two\n")
    snap("create", "-q", "--tag", "a=b")
    snap("pin", "latest")
    snap("describe", "latest", "words")
    snap("config", "exclude", "*.o")
    snap("config", "--root", "keep.last", "7")
    snap("restore", "first")
    snap("restore", "latest")
    (tmp_path / "plan.yaml").write_text(PLAN_TEXT)
    assert snap("plan", "run", tmp_path / "plan.yaml").code == 1
    disk = tmp_path / "disk"
    snap("remote", "add", "disk", disk, "--encrypt", env=SECRET)
    assert snap("push", "disk", env=SECRET).code == 0
    snap("list", "--name", "first")
    newest = treesnap.open(root, store).list()[0].id
    (root_id,) = os.listdir(store / "snapshots")
    place = store / "roots" / root_id
    (place / f"hold-{newest}").write_bytes(HOLD.seal(HoldRecord(1, "work", None)))
    gap = Gap(1, "claude", "s", "k", "tool", "t", "why")
    (place / "gaps").write_bytes(GAPS.seal((gap,)))
    return store


def records(store: Path, kind: str) -> Iterator[tuple[Path, Format[Any]]]:
    """Yields the files of a kind, with their formats."""
    if kind == "state":
        for path in sorted((store / "states").iterdir()):
            yield path, state_format(SnapshotId(path.name))
        return
    for path in sorted(store.rglob("*")):
        format_ = FORMATS[kind]
        assert format_ is not None
        if path.is_file() and not path.name.endswith(("lock", ".log")):
            data = path.read_bytes()
            try:
                format_.unseal(data, str(path))
            except (treesnap.TreesnapError, ValueError):
                continue
            yield path, format_


def planted(value: Any, command: str, is_accepted: Any, *, everywhere: bool) -> tuple[Any, int]:
    """Returns a record with a command in each text that its reader accepts, and how many."""
    count = 0

    def replaced(node: Any, build: Any, name: str = "") -> Any:
        nonlocal count
        if isinstance(node, dict):
            done = dict(node)
            for key in node:
                held = done[key]
                done[key] = replaced(held, lambda new, key=key: build({**done, key: new}), key)
            return done
        if isinstance(node, tuple):
            row = list(node)
            for index, held in enumerate(node):
                row[index] = replaced(
                    held,
                    lambda new, index=index: build((*row[:index], new, *row[index + 1 :])),
                    name,
                )
            return tuple(row)
        if not isinstance(node, str | bytes) or (name in LEADING and not everywhere):
            return node
        for text in (command, f"/$({command})"):
            planted_text = text if isinstance(node, str) else text.encode()
            if is_accepted(build(planted_text)):
                count += 1
                return planted_text
        return node

    return replaced(value, lambda new: new), count


def plant(store: Path, kind: str, command: str, *, everywhere: bool) -> int:
    """Plants a command in all records of a kind; returns in how many fields."""
    fields = 0
    for path, format_ in list(records(store, kind)):
        data = path.read_bytes()
        payload = data[HEADER_SIZE + 8 : -CHECKSUM_SIZE]

        def is_accepted(value: Any, format_: Format[Any] = format_) -> bool:
            try:
                format_.decode(pack(value))
            except (treesnap.TreesnapError, TypeError, ValueError, OverflowError):
                return False
            return True

        value, count = planted(
            unpack(payload, kind, 1 << 20), command, is_accepted, everywhere=everywhere
        )
        fields += count
        path.write_bytes(seal(format_.kind, pack(value)))
        if kind == "snapshot":
            sequence, _, _ = path.name.partition("-")
            path.rename(path.with_name(f"{sequence}-{snapshot_id(pack(value))}"))
    return fields


def run_everything(snap, root: Path, out: Path) -> int:
    """Runs every command, whatever comes of it; returns how many."""
    out.mkdir(exist_ok=True)
    for line in WORDS:
        words = line.format(out=out, root=root).split(" ") if line else []
        outcome = snap(*words, env=SECRET, given=b"{}")
        assert "Internal error" not in outcome.err, (line, outcome.err)
        (root / "file").write_text("two\n")
    return len(WORDS)


def test_every_command_is_run():
    named = {word for section in COMMANDS.values() for word in section}
    assert named - {line.split(" ")[0] for line in WORDS} == INTERACTIVE


def plant_settings(store: Path, command: str, *, everywhere: bool) -> int:
    """Plants a command in the settings of the store and of its root; returns in how many."""
    (root_id,) = os.listdir(store / "snapshots")
    lines = [f'exclude = ["{command}"]', f'keep.tags = ["{command}"]']
    if everywhere:  # these make the files invalid
        tables = ("diff", "passphrase-command", "runner")
        lines += [f'[{name}]\n"*" = "{command}"' for name in tables]
    for path in (store / "config.toml", store / "roots" / root_id / "config.toml"):
        path.write_text("\n".join([*lines, ""]))
    return 2 * len(lines)


EACH = [(kind, everywhere) for kind in [*FORMATS, "settings"] for everywhere in (False, True)]
EACH.remove(("root", False))  # it has no text but the path


@pytest.mark.unwatched  # two roots hold snapshots of one id, whose state is then shared
@pytest.mark.parametrize(("kind", "everywhere"), [("all", False), *sized([], EACH)])
def test_no_command_in_a_record_is_run(
    snap, root, handed_over, tmp_path, kind, everywhere, record_property
):
    marks = tmp_path / "marks"
    marks.mkdir()
    command = f"touch {marks}/$$; touch {marks}/done"
    fields = 0
    for each in FORMATS if kind == "all" else {kind} - {"settings"}:
        fields += plant(handed_over, each, command, everywhere=everywhere)
    if kind in {"all", "settings"}:
        fields += plant_settings(handed_over, command, everywhere=everywhere)
    (handed_over / "format").touch()  # as in any copy: its change time is another one

    runs = run_everything(snap, root, tmp_path / "out")

    record_property("counts", f"{fields} fields, {runs} commands")
    assert fields > 0
    assert os.listdir(marks) == []
