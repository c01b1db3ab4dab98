"""``snap schedule``: snapshots by a timer of systemd, and a line for cron."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from treesnap.cli.command import HELP_OPTIONS, SnapGroup, pass_invocation
from treesnap.cli.invocation import Invocation
from treesnap.cli.output.as_text import aligned
from treesnap.core.model.errors import NotFound, OperationFailed, printable
from treesnap.core.own_program import program_words

if TYPE_CHECKING:
    from treesnap.schedule import RemovedSchedule, ScheduleChange, ScheduledRoot, Scheduler

_SYSTEM_UNITS = "/etc/systemd/system"
_ADD = "add"


class ScheduleGroup(SnapGroup):
    """A group whose first word may be a time as well, which ``add`` takes."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Puts ``add`` before words that name no command."""
        is_help = args[:1] and args[0] in HELP_OPTIONS["help_option_names"]
        first = args if args[:1] and args[0].startswith("-") else args[:1]
        if args and not is_help and not self.commands.keys() & set(first):
            args = [_ADD, *args]
        return super().parse_args(ctx, args)


@click.group("schedule", cls=ScheduleGroup)
def schedule() -> None:
    """Take snapshots of the root regularly, by a timer of systemd.

    'snap schedule WHEN' is short for 'snap schedule add WHEN'. A root has one schedule in a
    store: adding another replaces it.
    """


_place_options = (
    click.option(
        "--user/--system",
        "for_user",
        default=None,
        help="Timers of the user or of the system [the system for root, else the user].",
    ),
    click.option("-n", "--dry-run", is_flag=True, help="Print what would be done; do nothing."),
)


@schedule.command(
    _ADD,
    examples=[
        "snap schedule add daily",
        "snap schedule add '30 3 * * mon-fri' --dry-run",
        "snap -C /etc schedule add hourly --force --on-failure 'logger -p err snapshot failed'",
        "snap schedule add daily --before 'pg_dump -f dump.sql app' --after 'rm dump.sql'",
        "snap schedule add daily --health-url https://hc.example.org/ping/1234",
        "snap schedule add daily --cron",
    ],
)
@click.argument("when")
@click.option(
    "--before", metavar="CMD", help="Run CMD by sh before each snapshot; if it fails, take none."
)
@click.option(
    "--after", metavar="CMD", help="Run CMD by sh after each snapshot, also one that failed."
)
@click.option(
    "--on-failure", metavar="CMD", help="Run CMD by sh if a snapshot fails or is incomplete."
)
@click.option("--health-url", metavar="URL", help="Request URL after each snapshot that succeeds.")
@click.option(
    "--cron",
    "for_cron",
    is_flag=True,
    help="Print a line to paste into a crontab; schedule nothing.",
)
@click.option("--force", is_flag=True, help="Allow a dangerous root, such as /etc or $HOME.")
@_place_options[0]
@_place_options[1]
@pass_invocation
def add(
    invocation: Invocation,
    *,
    when: str,
    before: str | None,
    after: str | None,
    on_failure: str | None,
    health_url: str | None,
    for_cron: bool,
    force: bool,
    for_user: bool | None,
    dry_run: bool,
) -> None:
    """Take a snapshot of the root at each time that WHEN names.

    WHEN is hourly, daily, weekly, monthly, yearly, or five fields of cron in quotes. The
    snapshots are automatic: 'snap config' says how many stay.
    """
    from treesnap.core.ops.context import check_root
    from treesnap.schedule import Job, parse_when

    if for_cron and for_user is not None:
        raise click.UsageError("--cron writes no units, so --user and --system say nothing with it")
    is_for_user = _is_for_user(for_user) and not for_cron  # a line needs no place for units
    scheduler = next(iter(_schedulers(for_user=is_for_user)))
    with invocation.open(progress=False, makes_store=True) as handle:
        check_root(handle.context, force=force)
        job = Job(
            root=handle.root,
            store=handle.store_path,
            when=parse_when(when),
            program=tuple(program_words()),
            before=before,
            after=after,
            on_failure=on_failure,
            health_url=health_url,
            force=force,
        )
        if for_cron:
            line = scheduler.cron_line(job)
        else:
            change = scheduler.add(job, dry_run=dry_run)
    output = invocation.output
    if for_cron:
        output.result("schedule.cron", lambda: {"line": line}, [line])
        output.note(
            "Nothing is scheduled yet: paste the line into 'crontab -e'; delete it there to end it",
            "Cron takes no snapshot for a time at which the machine was off",
        )
        return
    output.result("schedule.add", change._asdict, _change_lines(change))
    if _is_for_user(for_user):
        output.note(
            "Timers of a user run while the user is logged in; always: loginctl enable-linger"
        )


@schedule.command(
    "list", prints_only=True, examples=["snap schedule list", "snap schedule list --json"]
)
@_place_options[0]
@pass_invocation
def list_schedules(invocation: Invocation, *, for_user: bool | None) -> None:
    """List the schedules of this user, and for root those of the system.

    Columns: id, when, root, store; below, what else it runs. Lines of a crontab are not
    listed: 'crontab -l' shows them.
    """
    schedules = [
        item for scheduler in _schedulers(for_user=for_user) for item in scheduler.schedules()
    ]
    schedules = list(dict.fromkeys(schedules))
    if not schedules:
        invocation.output.note("No schedules")
    invocation.output.result(
        "schedule.list", lambda: {"schedules": schedules}, _list_lines(schedules)
    )


@schedule.command(
    "remove", examples=["snap schedule remove", "snap schedule remove /srv/data --dry-run"]
)
@click.argument("root_ref", metavar="[ROOT]", required=False)
@_place_options[0]
@_place_options[1]
@pass_invocation
def remove(
    invocation: Invocation, *, root_ref: str | None, for_user: bool | None, dry_run: bool
) -> None:
    """Remove the schedule of a root; its snapshots stay.

    ROOT is a path, or the beginning of an id that 'list' shows; by default the root.
    """
    if root_ref is None:
        with invocation.open(progress=False, makes_store=True, needs_root=False) as handle:
            given = handle.root
    else:
        given = os.path.realpath(root_ref) if os.path.isdir(root_ref) else root_ref
    done: list[RemovedSchedule] = []
    missing: NotFound | None = None
    for scheduler in _schedulers(for_user=for_user):
        try:
            done += scheduler.remove(given, dry_run=dry_run)
        except NotFound as error:
            missing = error
    if not done and missing is not None:
        raise missing
    invocation.output.result("schedule.remove", lambda: {"removed": done}, _removed_lines(done))


def _is_for_user(for_user: bool | None) -> bool:  # noqa: FBT001 - an option as it was given
    return for_user if for_user is not None else os.geteuid() != 0


def _schedulers(*, for_user: bool | None) -> Iterator[Scheduler]:
    """Yields the schedulers that are meant: without a choice, for root both."""
    from treesnap.core.fs.local import LocalFileSystem
    from treesnap.core.ops.context import home_directory
    from treesnap.schedule import Scheduler, TimerPlace

    config, home = os.environ.get("XDG_CONFIG_HOME", ""), home_directory()
    directories = {False: _SYSTEM_UNITS}
    if not os.path.isabs(config) and home is not None:
        config = os.path.join(home, ".config")
    if os.path.isabs(config):
        directories[True] = os.path.join(config, "systemd", "user")
    both = [False, True] if os.geteuid() == 0 else [True]
    kinds = both if for_user is None else [for_user]
    if kinds == [True] and True not in directories:
        raise OperationFailed(
            "There is no home directory with timers of a user, and XDG_CONFIG_HOME is not set"
        )
    kinds = [kind for kind in kinds if kind in directories]
    for is_user in kinds:
        yield Scheduler(
            TimerPlace(
                fs=LocalFileSystem(),
                environ=os.environ,
                unit_directory=directories[is_user],
                is_system=not is_user,
            )
        )


def _change_lines(change: ScheduleChange) -> Iterator[str]:
    if change.dry_run:
        for item in change.written:
            yield f"Would write {printable(item.path)}:"
            yield from (f"  {line}".rstrip() for line in item.text.splitlines())
        for words in change.commands:
            yield f"Would run: {' '.join(words)}"
        return
    plan = change.schedule
    yield (
        f"Scheduled {printable(plan.when)} snapshots of {printable(plan.root)}: "
        f"{printable(plan.path)}"
    )


def _list_lines(schedules: Sequence[ScheduledRoot]) -> Iterator[str]:
    rows = [
        (item.id, printable(item.when), printable(item.root), printable(item.store))
        for item in schedules
    ]
    for item, row in zip(schedules, aligned(rows, to_the_right=()), strict=True):
        yield row
        extras = {
            "before": item.before,
            "after": item.after,
            "on failure": item.on_failure,
            "on success": item.health_url,
        }
        yield from (f"  {name}: {printable(text)}" for name, text in extras.items() if text)


def _removed_lines(done: Iterable[RemovedSchedule]) -> Iterator[str]:
    for item in done:
        verb = "Would remove" if item.dry_run else "Removed"
        plan = item.schedule
        yield f"{verb} {printable(plan.when)} snapshots of {printable(plan.root)}:"
        yield from (f"  {printable(path)}" for path in item.removed)
