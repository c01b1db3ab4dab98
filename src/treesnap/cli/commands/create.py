"""``snap create``: captures a directory."""

from __future__ import annotations

from collections.abc import Sequence

from treesnap.cli.declarations import argument, command, option
from treesnap.cli.failure import ExitCode, usage_error
from treesnap.cli.invocation import Invocation
from treesnap.cli.options import name_options
from treesnap.cli.output.as_text import create_notes
from treesnap.cli.parameters import COUNTER, SIZE, OneOf, WholeNumber, by_key
from treesnap.core.model.reserved_tags import CheckpointType, counter_tags
from treesnap.core.model.snapshots import SnapshotKind
from treesnap.core.model.type_names import Any


@command(
    "create",
    examples=[
        'snap create -m "before the upgrade"',
        "snap create config/ notes.txt --exclude '*.log'",
        "snap create --session build-7 --step 3 --skip-unchanged --json",
    ],
)
@argument("paths", nargs=-1, metavar="[PATH]...")
@option("-m", "--label", metavar="LABEL", help="A description.")
@name_options
@option("--session", metavar="ID", help="The work that the snapshot belongs to.")
@option("--step", type=WholeNumber(min=0), metavar="N", help="Its place in the session.")
@option("--step-name", is_tag=True, metavar="NAME", help="The name of the step.")
@option("--phase", is_tag=True, metavar="PHASE", help="The phase of the work, such as 'validate'.")
@option(
    "--type",
    is_tag=True,
    type=OneOf([item.value for item in CheckpointType]),
    help="What makes it worth going back to.",
)
@option("--reason", is_tag=True, metavar="TEXT", help="Why it is taken.")
@option("--source-tool", is_tag=True, metavar="NAME", help="The program that asks for it.")
@option(
    "--counter",
    "counters",
    type=COUNTER,
    collect=by_key,
    multiple=True,
    metavar="K=N",
    help="A number, such as tests_passing=42; repeatable.",
)
@option("--allow-absent", is_flag=True, help="Allow PATHs that do not exist.")
@option("--skip-unchanged", is_flag=True, help="Make no snapshot if nothing changed.")
@option(
    "--exclude",
    multiple=True,
    metavar="PATTERN",
    help="Do not capture these, in gitignore syntax; repeatable.",
)
@option(
    "--max-size",
    "max_size_bytes",
    type=SIZE,
    metavar="SIZE",
    help="The limit of the store; default: 'snap config max-size'.",
)
@option(
    "--validate",
    metavar="CMD",
    help="Run CMD in the root first, by sh; capture nothing if it fails.",
)
@option("--automatic", is_flag=True, help="Let the policy of 'snap prune' remove it.")
@option("--force", is_flag=True, help="Allow a dangerous root, such as / or $HOME.")
def create(
    invocation: Invocation,
    /,
    *,
    paths: Sequence[str],
    tags: dict[str, str],
    counters: dict[str, int],
    allow_absent: bool,
    skip_unchanged: bool,
    exclude: Sequence[str],
    max_size_bytes: int | None,
    validate: str | None,
    automatic: bool,
    force: bool,
    **words: Any,
) -> int:
    """Capture the root, or only PATHs of it.

    Prints the snapshot's id. Exits 4 when something could not be read: the snapshot
    exists and lists it; 3 when CMD of --validate fails, and captures nothing.
    """
    from treesnap.core.ops.create import CreateOptions

    facts = {**invocation.tags, **counter_tags(counters)}
    if twice := sorted(tags.keys() & facts.keys()):
        raise usage_error(f"--tag and another option both set {twice[0]!r}")
    options = CreateOptions(
        exclude=exclude,
        allow_absent=allow_absent,
        skip_unchanged=skip_unchanged,
        force=force,
        max_size_bytes=max_size_bytes,
        validate=validate,
    )
    with invocation.open(makes_store=True) as handle:
        result = handle.create(
            invocation.absolute_all(paths, handle.root),
            tags={**tags, **facts},
            kind=SnapshotKind.AUTOMATIC if automatic else SnapshotKind.MANUAL,
            options=options,
            **words,
        )
    invocation.output.note(*create_notes(result))
    invocation.output.result("create", result.to_dict, [result.id])
    return ExitCode.DONE if result.complete else ExitCode.INCOMPLETE
