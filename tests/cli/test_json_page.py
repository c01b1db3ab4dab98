"""Every field that commands print as JSON stands on the page about JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("reference/json.md", "explanation/systems.md")
"""The second has the names of what depends on the system; the first leads there."""
CODE = " ".join(re.findall(r"`([^`]*)`", "".join((DOCS / page).read_text() for page in PAGES)))
NAMED = frozenset(re.findall(r"[a-z_0-9]+", CODE))
NAMED_BY_USERS = frozenset({"tags", "counters"})
"""Objects whose fields a user names."""

COMMANDS = [
    "create -m again --tag a=b --type safe_state --phase plan",
    "create --skip-unchanged",
    "create file --name part",
    "list",
    "show first",
    "ls first -R",
    "cat first file",
    "find file",
    "grep text",
    "blame file",
    "log",
    "log file",
    "status",
    "diff",
    "diff first --stat",
    "restore first --dry-run",
    "restore first",
    "undo",
    "redo",
    "revert first..second --dry-run",
    "fork second ../fork",
    "adopt ../fork --dry-run",
    "run -- true",
    "pin second",
    "unpin second",
    "describe second words",
    "tag second c=d",
    "du second",
    "stats",
    "config",
    "config keep.last",
    "doctor",
    "verify",
    "root list",
    "store info",
    "archive second -o ../archive.tar",
    "import ../archive.tar",
    "prune --dry-run",
    "gc --dry-run",
    "delete part",
    "gc",
    "list --session none",
    "show absent",
]


def fields_of(value: Any, place: str = "") -> Iterator[str]:
    """Yields where each field of a document stands, the names between points."""
    if isinstance(value, list):
        for item in value:
            yield from fields_of(item, place)
    elif isinstance(value, dict):
        for name, held in value.items():
            yield f"{place}{name}"
            if name not in NAMED_BY_USERS:
                yield from fields_of(held, f"{place}{name}.")


def test_every_field_is_named(snap, root):
    (root / "file").write_text("text\n")
    (root / ".snapignore").write_text("left-out\n")
    (root / "left-out").write_text("")
    snap("create", "--name", "first")
    (root / "file").write_text("text\nmore\n")
    (root / "link").symlink_to("file")
    snap("create", "--name", "second")

    unnamed = set()
    for line in COMMANDS:
        outcome = snap("--json", *line.split())
        assert outcome.code != 2, outcome.json
        fields = fields_of(outcome.json)
        unnamed |= {f"{line}: {it}" for it in fields if it.rpartition(".")[2] not in NAMED}

    assert sorted(unnamed) == []
