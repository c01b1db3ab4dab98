"""The script that asks a Mac runs: over the double of its library, which is what is asked about."""

from __future__ import annotations

import json

import pytest

from file_systems.run_facts import Facts
from libsystem import VOLUMES, SystemDouble
from treesnap.core.fs.darwin import DarwinFileSystem
from treesnap.core.fs.posix import PosixFileSystem

pytestmark = pytest.mark.needs("linux")


def test_each_fact_is_told(tmp_path, capsys):
    facts = Facts(tmp_path, DarwinFileSystem(SystemDouble(VOLUMES["APFS"])))

    facts.tell_of_any()
    for fact, found in (
        ("exchange", facts.swap),
        ("clone", facts.clone),
        ("clone of the seam", facts.shared),
        ("reserved", facts.allocated),
        ("hole", facts.hole),
        ("read-only", lambda: facts.attribute_of("shut", 0o400)),
        ("fork", facts.shorter_fork),
        ("pipe", facts.attributes_of_pipe),
        ("case", facts.case_only),
        ("list", facts.list_is_removed),
    ):
        facts.tell(fact, found)

    told = {
        line["fact"]: line["found"]
        for line in map(json.loads, capsys.readouterr().out.split("\n")[:-1])
    }
    assert facts.wrong == []
    assert told["exchange"] is True
    assert told["clone"] == "mode 440, ['colour', 'treesnap.darwin.flags']"
    assert (told["clone of the seam"], told["reserved"], told["hole"]) == (True, 2048, 1024)
    assert told["read-only"].endswith("set EACCES, removed EACCES")
    assert told["list"] is True
    assert (told["fork"], told["pipe"], told["case"]) == (True, "Unsupported EPERM", ["name"])


def test_what_is_otherwise_than_taken_for_granted_is_noted(tmp_path, capsys):
    facts = Facts(tmp_path)

    facts.tell("right", lambda: 1, expected=1)
    facts.tell("wrong", lambda: 2, expected=1)
    facts.tell("failed", lambda: {}["absent"], expected=1)

    facts.tell("not there", lambda: PosixFileSystem().list_xattrs(0), expected=1)

    assert facts.wrong == ["wrong", "failed"]
    assert json.loads(capsys.readouterr().out.splitlines()[2])["found"] == "KeyError 'absent'"
