"""Forms of results that take a rare situation to come about."""

import pytest

from treesnap.cli.checks import next_steps, verify_lines
from treesnap.core.model.results import PartialSnapshot, Problem, RecoveredObject, VerifyResult
from treesnap.core.model.snapshots import SnapshotId

PARTIAL = SnapshotId("ab" * 32)
PROBLEM = Problem(
    code="bad-pack",
    message="A record is damaged",
    where="packs/x",
    snapshot_ids=(PARTIAL,),
    paths=(b"a\xff\n",),
    path_count=1,
)


def verified(**fields):
    """Returns what ``verify`` finds in a store of one snapshot."""
    return VerifyResult(
        **({"problems": (), "snapshots": 1, "objects": 2, "read_bytes": 0} | fields)
    )


def partial(*paths: bytes) -> PartialSnapshot:
    """Returns a snapshot that lost some paths."""
    return PartialSnapshot(
        snapshot_id=PARTIAL, name="step", root=b"/mnt/d", paths=paths, path_count=len(paths)
    )


def test_repairs_and_problems_are_named_with_what_they_cost():
    recovered = RecoveredObject(object_id="cd" * 32, root=b"/mnt/d", path=b"b")

    result = verified(
        problems=(PROBLEM,),
        left=(PROBLEM,),
        repaired=("Rebuilt the index",),
        recovered=(recovered, recovered),
        partial=(partial(b"a\xff\n", b""),),
    )

    assert list(verify_lines(result)) == [
        "2 paths of /mnt/d cannot be restored from snapshot abababababab (step)",
        "  a\\xff\\n",
        "  .",
        "repaired: Rebuilt the index",
        "recovered: what is in /mnt/d/b",
        "problem: A record is damaged [bad-pack, packs/x]",
        "1 problem found, 1 left in 1 snapshot, 2 objects, content not read",
    ]


def test_snapshots_that_lost_the_same_paths_are_named_together():
    items = [partial(b"a")._replace(snapshot_id=f"{n:064x}", name=None) for n in range(5)]
    other = partial(b"a")._replace(root=b"/mnt/e")

    lines = list(verify_lines(verified(problems=(PROBLEM,), partial=(*items, other))))

    zeros = "000000000000, 000000000000, 000000000000 and 2 more"
    assert lines[:4] == [
        f"1 path of /mnt/d cannot be restored from 5 snapshots: {zeros}",
        "  a",
        "1 path of /mnt/e cannot be restored from snapshot abababababab (step)",
        "  a",
    ]


def test_ids_in_problems_are_short_and_not_repeated():
    identity = "ab" * 32
    problem = Problem(code="c", message=f"Object {identity} is missing", where=identity)

    assert "problem: Object abababababab is missing [c]" in verify_lines(
        verified(problems=(problem,))
    )


READ_TOO = ["verify", "--read-data"]
REPAIR = [*READ_TOO, "--repair"]


@pytest.mark.parametrize(
    ("fields", "repair", "words"),
    [
        ({}, False, [READ_TOO]),
        ({"content_read": True}, False, []),
        ({"problems": (PROBLEM,), "left": (PROBLEM,)}, False, [REPAIR]),
        ({"problems": (PROBLEM,), "content_read": True}, True, []),
        ({"left": (PROBLEM,), "partial": (partial(b"a"),)}, True, [REPAIR]),
        ({"left": (PROBLEM,), "partial": (partial(b""),)}, True, [["create"], READ_TOO]),
        ({"left": (PROBLEM,), "partial": (partial(b"a", b""),)}, True, [["create"], REPAIR]),
    ],
)
def test_what_to_type_next(fields, repair, words):
    assert [step for _, step in next_steps(verified(**fields), ["verify"], repair=repair)] == words


def test_paths_that_are_not_printed_are_counted():
    result = verified(problems=(PROBLEM,), partial=(partial(*(b"%d" % n for n in range(1234))),))

    lines = [line for line in verify_lines(result) if line.startswith("  ")]

    assert len(lines) == 21
    assert lines[-1] == "  and 1,214 more"


def test_problems_as_json_name_paths_that_are_not_utf8():
    problem = Problem(code="c", message="m", where="w", paths=(b"\xff",), path_count=1)

    result = verified(problems=(problem,), partial=(partial(b"\xff"),))

    fields = result.to_dict()
    assert fields["problems"][0]["paths"] == [{"path": "\\xff", "path_bytes": "/w=="}]
    assert fields["partial"][0]["paths"] == fields["problems"][0]["paths"]
    assert fields["partial"][0]["root"] == "/mnt/d"
