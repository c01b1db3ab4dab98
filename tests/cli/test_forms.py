"""Forms of results that take a rare situation to come about."""

from treesnap.cli import json_forms, text_forms
from treesnap.model import SnapshotId
from treesnap.results import Problem, VerifyResult

PARTIAL = SnapshotId("ab" * 32)


def verified(**fields):
    """Returns what ``verify`` finds in a store of one snapshot."""
    return VerifyResult(**({"snapshots": 1, "objects": 2, "read_bytes": 0} | fields))


def test_repairs_and_problems_are_named_with_what_they_cost():
    problem = Problem(
        code="bad-pack",
        message="A record is damaged",
        where="packs/x",
        snapshot_ids=(PARTIAL,),
        paths=(b"a\xff\n",),
    )

    result = verified(problems=(problem,), repaired=("Rebuilt the index",))

    assert list(text_forms.verify_lines(result)) == [
        "repaired: Rebuilt the index",
        "problem: A record is damaged [bad-pack, packs/x]",
        "  makes partial: abababababab",
        "  cannot be restored: a\\xff\\n",
        "1 problem in 1 snapshot, 2 objects, 0 B read",
    ]


def test_problems_as_json_name_paths_that_are_not_utf8():
    problem = Problem(code="c", message="m", where="w", paths=(b"\xff",))

    (fields,) = json_forms.verify_fields(verified(problems=(problem,), repaired=()))["problems"]

    assert fields["paths"] == [{"path": "\\xff", "path_bytes": "/w=="}]
