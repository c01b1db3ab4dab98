"""``snap remote``: where history is kept elsewhere, and what is there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from treesnap.cli.checks import print_check
from treesnap.cli.command import SnapGroup, pass_invocation
from treesnap.cli.failure import ExitCode, advised
from treesnap.cli.invocation import Invocation
from treesnap.cli.listing import Selection, snapshot_lines
from treesnap.cli.options import filter_options, keep_options, read_data_option
from treesnap.cli.retention import print_decisions
from treesnap.core.model.errors import Corrupt, ErrorCode, InvalidArgument, printable, quoted
from treesnap.core.model.quantities import count_text, size_text, time_text
from treesnap.remote.commands.completion import remote_argument
from treesnap.remote.commands.keys import key
from treesnap.remote.commands.members import given_invitation, invite, members
from treesnap.remote.commands.secret import Source, new_secret_of, remember, remotes_of
from treesnap.remote.commands.writers import deliver, receive

if TYPE_CHECKING:
    from treesnap.remote import HistoryInfo, RemoteCheck, RemoteInfo, RolePolicy

_EXPORTED_SIZE_MAX = 64 << 20


@click.group("remote", cls=SnapGroup)
def remote() -> None:
    """Keep history on object storage, on another disk or another machine.

    A remote is a bucket (s3://, gs://, az://), a directory, here or on another
    machine (ssh://), or what rclone reaches (rclone:). 'snap push' stores snapshots
    there, 'snap clone' makes a directory of them on any machine.
    """


@remote.command(
    "add",
    examples=[
        "snap remote add disk /mnt/disk/snapshots",
        "snap remote add backup s3://bucket/me",
        "snap remote add nas ssh://me@nas/~/snapshots",
        "snap remote add backup s3://bucket/me --passphrase-command 'pass treesnap'",
    ],
)
@click.argument("name")
@click.argument("url")
@click.option(
    "--encrypt/--no-encrypt",
    "encrypts",
    default=None,
    help="Whether it is encrypted: anything but a directory is, or where a passphrase is set.",
)
@click.option(
    "--append-only", is_flag=True, help="Replace nothing there: credentials need not allow it."
)
@click.option(
    "--only-collector",
    is_flag=True,
    help="Let this machine alone collect garbage there: a lesser server will do.",
)
@click.option("--passphrase-file", metavar="FILE", help="Read the passphrase from a file's line.")
@click.option("--passphrase-command", metavar="COMMAND", help="Run a command that prints it.")
@click.option("--keys", metavar="FILE", help="Take key slots that 'remote key export' printed.")
@click.option("--invited", is_flag=True, help="Use the invitation of an owner, and no passphrase.")
@pass_invocation
def add(
    invocation: Invocation,
    *,
    name: str,
    url: str,
    encrypts: bool | None,
    append_only: bool,
    only_collector: bool,
    passphrase_file: str | None,
    passphrase_command: str | None,
    keys: str | None,
    invited: bool,
) -> None:
    """Add a remote, and set it up where there is none.

    The server is tried out first. A remote in a bucket or on another machine, or for which a
    passphrase is set, is encrypted, and one that exists there is refused if it is not. The
    passphrase comes from --passphrase-command, --passphrase-file, $TREESNAP_REMOTE_KEY,
    $TREESNAP_REMOTE_PASSPHRASE, or the terminal, in this order. The remote cannot be read without
    it, and it cannot be recovered. With --invited, $TREESNAP_REMOTE_INVITATION stands for it.
    """
    from treesnap.remote import Remotes

    if passphrase_file is not None:
        passphrase_file = os.path.abspath(passphrase_file)
    source = Source(passphrase_command, passphrase_file)
    with invocation.open(progress=False, makes_store=True, needs_root=False) as handle:
        info = Remotes(handle, partial(new_secret_of, source=source)).add(
            name,
            url,
            encrypted=encrypts,
            append_only=append_only,
            only_collector=only_collector,
            exported_keys=_content(keys) if keys is not None else None,
            invitation=given_invitation() if invited else None,
        )
        remember(handle, info.url, source)
    words = "encrypted" if info.is_encrypted else "not encrypted"
    line = f"Added the remote {info.name}: {printable(info.url)}, {words}"
    invocation.output.result("remote.add", info._asdict, [line])
    if not info.may_collect:
        invocation.output.note(
            "This machine collects no garbage there: another one alone does, or the server "
            "cannot be relied on for that"
        )


def _content(path: str) -> str:
    """Returns what is in a file of exported keys; raises InvalidArgument."""
    from treesnap.core.fs.durable import read_file
    from treesnap.core.fs.local import LocalFileSystem

    try:
        return os.fsdecode(read_file(LocalFileSystem(), path, _EXPORTED_SIZE_MAX))
    except OSError as error:
        raise InvalidArgument(
            f"The file {quoted(path)} cannot be read: {error.strerror}", path=path
        ) from error


@remote.command("list", prints_only=True, examples=["snap remote list"])
@pass_invocation
def list_remotes(invocation: Invocation) -> None:
    """List the remotes that the store knows."""
    with invocation.open(progress=False, needs_root=False) as handle:
        remotes = remotes_of(handle).list()
    if not remotes:
        invocation.output.note("No remotes")
    invocation.output.result("remote.list", lambda: {"remotes": remotes}, _remote_lines(remotes))


@remote.command("show", prints_only=True, examples=["snap remote show backup"])
@remote_argument("name", required=False)
@pass_invocation
def show(invocation: Invocation, *, name: str | None) -> None:
    """List the histories on a remote.

    Columns: id, time of the newest snapshot, number of snapshots, name. NAME may be left
    out where there is only one remote.
    """
    with invocation.open(progress=False, needs_root=False) as handle:
        histories = remotes_of(handle).histories(name)
    if not histories:
        invocation.output.note("No histories")
    invocation.output.result(
        "remote.show", lambda: {"histories": histories}, _history_lines(histories)
    )


@remote.command(
    "snapshots",
    prints_only=True,
    is_paged=True,
    examples=[
        "snap remote snapshots backup",
        "snap remote snapshots backup/garden --since yesterday",
    ],
)
@remote_argument("place", metavar="[REMOTE[/HISTORY]]", required=False)
@filter_options
@pass_invocation
def list_snapshots(invocation: Invocation, /, *, place: str | None, **filters: Any) -> None:
    """List the snapshots of a history on a remote, newest first.

    Without HISTORY those of the root's own history there, or of the only one. Nothing is
    fetched: 'snap fetch' does that. REMOTE may be left out where there is only one.
    """
    name, _, history = (place or "").partition("/")
    with invocation.open(progress=False) as handle:
        selection = Selection(handle, **filters)
        listed = remotes_of(handle).snapshots(name or None, history or None)
    snapshots = list(selection.of(listed))
    if not snapshots:
        where = printable(place) if place is not None else "the remote"
        invocation.output.note(f"{selection.none_found()} on {where}")
    invocation.output.result(
        "remote.snapshots",
        lambda: {"snapshots": snapshots},
        snapshot_lines(invocation, handle, snapshots),
    )


@remote.command("remove", examples=["snap remote remove backup"])
@remote_argument("name")
@pass_invocation
def remove(invocation: Invocation, *, name: str) -> None:
    """Forget a remote; what is stored there stays."""
    with invocation.open(progress=False, needs_root=False) as handle:
        remotes_of(handle).remove(name)
    line = f"Forgot the remote {name}; what is stored there stays"
    invocation.output.result("remote.remove", lambda: {"name": name}, [line])


@remote.command("delete", examples=["snap remote delete backup 5d41402abc4b"])
@remote_argument("name")
@click.argument("history")
@pass_invocation
def delete(invocation: Invocation, *, name: str, history: str) -> None:
    """Delete a history on a remote, with all its snapshots.

    For machines that are gone: one that is not pushes them again. HISTORY is a name, or the
    beginning of an id, as 'snap remote show' prints them. Then 'snap remote gc' frees the space.
    """
    with invocation.open(progress=False, needs_root=False) as handle:
        info = remotes_of(handle).delete(name, history)
    count = count_text(info.snapshots, "snapshot")
    line = f"Deleted {count} of {printable(info.name)} ({info.id[:12]}) on {name}"
    invocation.output.result("remote.delete", info._asdict, [line])


@remote.command(
    "verify",
    examples=[
        "snap remote verify backup",
        "snap remote verify backup --read-data",
        "snap remote verify backup --repair",
    ],
)
@remote_argument("name", required=False)
@read_data_option
@click.option(
    "--repair", is_flag=True, help="Store again what is lost or damaged, as far as it is here."
)
@pass_invocation
def verify(invocation: Invocation, *, name: str | None, read_data: bool, repair: bool) -> None:
    """Check that everything is there that the snapshots on a remote need.

    Without --read-data, damage in the content of files is not looked for. Exits 7 when there
    is damage. To repair it, run this with --repair on each machine that pushed there.
    """
    with invocation.open(needs_root=False) as handle, _advising_on_unreadable(invocation.program):
        result = remotes_of(handle).verify(name, read_data=read_data, repair=repair)
    again = ["remote", "verify", *([name] if name is not None else [])]
    print_check(invocation, "remote.verify", result, again=again, repair=repair)


@remote.command(
    "repair", examples=["snap remote repair backup", "snap remote repair backup --rebuild"]
)
@remote_argument("name", required=False)
@click.option("--rebuild", is_flag=True, help="Write index, catalog and state anew, from packs.")
@pass_invocation
def repair(invocation: Invocation, *, name: str | None, rebuild: bool) -> None:
    """Store small files of a remote again that are lost or damaged.

    What the remote cannot do without is there twice, or follows from packs. With --rebuild that is
    all that is needed of it, beside a key slot; machines that remember more have to take it as it
    is then. For lost contents there is 'snap remote verify --repair'.
    """
    with invocation.open(progress=False, needs_root=False) as handle:
        result = remotes_of(handle).repair(name, rebuild=rebuild)
    lines = [f"Stored again: {item}" for item in result.files]
    lines += [f"Put right: {item}" for item in result.commits]
    lines += [f"Removed, as no machine of the remote wrote it: {item}" for item in result.removed]
    if result.rebuilt is not None:
        packs = count_text(result.rebuilt.packs, "pack")
        snapshots = count_text(result.rebuilt.snapshots, "snapshot")
        lines.append(
            f"Rebuilt from {packs}: {snapshots}, {result.rebuilt.found} in no commit and catalog"
        )
    if not lines:
        invocation.output.note("Nothing had to be stored again")
    invocation.output.result("remote.repair", result._asdict, lines)


@remote.command(
    "prune",
    examples=[
        "snap remote prune backup --dry-run",
        "snap remote prune backup --keep-last 10 --keep-daily 7",
    ],
)
@remote_argument("name", required=False)
@keep_options
@click.option("-n", "--dry-run", is_flag=True, help="Print what would go and why; delete nothing.")
@pass_invocation
def prune(invocation: Invocation, /, *, name: str | None, dry_run: bool, **rules: Any) -> None:
    """Delete snapshots of the root's history on a remote that no rule keeps.

    Nothing local is deleted. 'snap remote gc' then frees their space. Without a rule those of
    'snap config' hold, as for 'snap prune'. Pinned and named snapshots always stay, and the
    newest of the whole root.
    """
    from treesnap.core.store.maintenance.retention import Policy

    with invocation.open() as handle:
        result = remotes_of(handle).prune(name, Policy(**rules), dry_run=dry_run)
    print_decisions(
        invocation,
        "remote.prune",
        result.to_dict,
        result.decisions,
        again=["remote", "prune", result.remote],
        collect=["remote", "gc", result.remote],
        without_snapshots=f"The root's history on {result.remote} has no snapshots",
    )


@remote.command("gc", examples=["snap remote gc backup"])
@remote_argument("name", required=False)
@pass_invocation
def collect(invocation: Invocation, *, name: str | None) -> None:
    """Free the space of everything on a remote that no snapshot needs.

    Other machines may push and clone meanwhile.
    """
    with invocation.open(needs_root=False) as handle:
        collected = remotes_of(handle).collect(name)
    line = f"Removed {count_text(collected.packs, 'pack')}, {size_text(collected.freed_bytes)}"
    invocation.output.result("remote.gc", collected._asdict, [line])
    if not collected.packs:
        remove = invocation.command_text("remote", "prune", *([name] if name else []), "--dry-run")
        invocation.output.note(
            "At least half of each pack is needed by snapshots there, or by a push that was "
            "interrupted, which keeps its packs for some collections more",
            f"To free more, remove snapshots first; which ones could go: {remove}",
        )


@remote.command("check", prints_only=True, examples=["snap remote check backup"])
@remote_argument("name", required=False)
@pass_invocation
def check(invocation: Invocation, *, name: str | None) -> None:
    """Try out the server of a remote, and say what can be relied on.

    Writes some files and removes them. Exits 3 where not every command can be relied on. NAME
    may be left out where there is only one remote.
    """
    with invocation.open(progress=False, needs_root=False) as handle:
        report = remotes_of(handle).check(name)
    invocation.output.result("remote.check", report.fields, check_lines(report))
    if not report.is_reliable:
        click.get_current_context().exit(ExitCode.REFUSED)


@remote.command(
    "policy",
    prints_only=True,
    examples=["snap remote policy backup", "snap remote policy backup --role member"],
)
@remote_argument("name", required=False)
@click.option(
    "--role",
    type=click.Choice(["writer", "reader", "member", "collector"]),
    help="Print the rules for one role alone.",
)
@pass_invocation
def policy(invocation: Invocation, *, name: str | None, role: str | None) -> None:
    """Print the rules that a bucket needs for machines that deliver, read, push or collect.

    For S3 a document for IAM, elsewhere what to set, in words. Nothing is removed with the
    credentials of a writer or a member. Asks no server.
    """
    from treesnap.remote import Role

    with invocation.open(progress=False, needs_root=False) as handle:
        policies = remotes_of(handle).policy(name, Role(role) if role is not None else None)
    invocation.output.result("remote.policy", policies._asdict, _policy_lines(policies.roles))
    for item in policies.roles:
        if item.policy is not None:
            for sentence in item.advice:
                invocation.output.note(sentence)


remote.add_command(key)
remote.add_command(invite)
remote.add_command(members)
remote.add_command(deliver)
remote.add_command(receive)


@contextmanager
def _advising_on_unreadable(program: str) -> Iterator[None]:
    """Gives the error that a remote cannot be checked advice: that of its code is to check it."""
    try:
        yield
    except Corrupt as error:
        if error.code is ErrorCode.REMOTE_DAMAGED:
            advised(
                error,
                "nothing can be stored there without that: put back a copy of it, if there is one; "
                f"or '{program} remote add' another place, and '{program} push' from each machine",
            )
        raise


def _remote_lines(remotes: Iterable[RemoteInfo]) -> Iterator[str]:
    for info in remotes:
        words = "" if info.is_encrypted else "  (not encrypted)"
        yield f"{info.name}  {printable(info.url)}{words}"


def _history_lines(histories: Iterable[HistoryInfo]) -> Iterator[str]:
    for info in histories:
        newest = time_text(info.newest_at_ns)
        yield f"{info.id[:12]}  {newest:19}  {info.snapshots:>6,}  {printable(info.name)}"


def _policy_lines(policies: Sequence[RolePolicy]) -> Iterator[str]:
    """Yields a document alone for one role, so that it can be passed on."""
    import json

    for item in policies:
        if len(policies) > 1:
            yield f"{item.role}: {item.allows}"
        if item.policy is None:
            yield from item.advice
        else:
            yield json.dumps(item.policy, indent=2)


_CREATION = {
    "atomic": "Creates a file once, also when several machines try at the same time",
    "sequential": "May create a file twice when several machines try at the same time",
    "none": "Replaces a file that is there, or cannot create one",
}


def check_lines(report: RemoteCheck) -> Iterator[str]:
    """Yields what a remote is, what its server guarantees, and what follows from that."""
    yield f"{report.name}  {printable(report.url)}"
    yield _server_line(report)
    yield _speed_line(report)
    if report.key_slots is None:
        yield "Not encrypted: a user who can read it can read the snapshots"
    else:
        memory = ", ".join(size_text(item << 10) for item in dict.fromkeys(report.slot_memory_kib))
        costs = f"; a passphrase takes {memory} of memory" if memory else ""
        yield f"Encrypted, with {count_text(report.key_slots, 'key slot')}{costs}"
    yield from _content_lines(report)
    yield _CREATION[report.creation]
    if report.lists_current:
        yield "Lists what was written just before"
    else:
        yield "May list late what was written"
    if report.has_ranges:
        yield "Reads parts of files"
    else:
        yield "Reads no parts of files: what needs a part of a pack reads all of it"
    yield _RIGHTS[report.may_replace, report.may_remove]
    if report.keeps_versions is not None:
        kept = "Keeps" if report.keeps_versions else "Keeps no"
        yield f"{kept} versions of what is replaced or removed there"
    yield from (f"Found: {reason}" for reason in report.reasons)
    if not report.is_sound and report.may_collect:
        yield (
            "Do not run 'snap remote gc': it could lose snapshots, though the server could be "
            "relied on when the remote was set up"
        )
    elif report.collection == "one":
        which = "This machine" if report.may_collect else "Another machine"
        yield f"{which} alone may collect garbage"
    elif report.may_collect:
        yield "Any machine may collect garbage"
    elif report.is_sound:
        yield (
            "No machine may collect garbage: the server could not be relied on when the remote "
            "was set up"
        )
    else:
        yield "No machine may collect garbage; push and clone work"


_RIGHTS = {
    (True, True): "This machine may replace and remove files there",
    (True, False): "This machine may replace files there, and remove none",
    (False, True): "This machine may remove files there, and replace none",
    (False, False): "This machine may replace and remove nothing there",
}


def _speed_line(report: RemoteCheck) -> str:
    free = f", {size_text(report.free_bytes)} free" if report.free_bytes is not None else ""
    return (
        f"Answers after {report.latency_ms:.1f} ms; takes {size_text(report.upload_bytes_per_s)} "
        f"and gives {size_text(report.download_bytes_per_s)} a second{free}"
    )


def _content_lines(report: RemoteCheck) -> Iterator[str]:
    """Yields what is on a remote, and what of it is not as it should be."""
    when = f", at {time_text(report.collected_at_ns)}" if report.collected_at_ns is not None else ""
    yield (
        f"State {report.state}, after {count_text(report.collections, 'collection')}; "
        f"{count_text(report.members, 'machine')}, of which {report.machines} have pushed; "
        f"{count_text(report.unfolded, 'push', 'pushes')} since the last collection{when}"
    )
    if report.writers or report.deliveries:
        waiting = f"; {count_text(report.deliveries, 'delivery', 'deliveries')} wait in the inbox"
        ways = ": 'snap remote receive' stores them" if report.deliveries else ""
        yield f"{count_text(report.writers, 'writer')} may deliver{waiting}{ways}"
    if report.lacking is not None:
        yield (
            f"Lacks {count_text(report.lacking, 'snapshot')} of this root: 'snap push' stores them"
            if report.lacking
            else "Has every snapshot of this root that was asked for"
        )
    if report.single_files:
        yield (
            f"Found: {count_text(report.single_files, 'small file')} without a copy: "
            "'snap remote repair' makes it"
        )
    if report.unsigned_states:
        yield (
            f"Found: {count_text(report.unsigned_states, 'file')} among the states that no machine "
            "of the remote wrote: 'snap remote repair' removes what no collection passes"
        )
    for machine, count in sorted(report.junk.items()):
        yield (
            f"Found: {count_text(count, 'push', 'pushes')} of machine {machine} that cannot be "
            "read, or are not signed by a machine that may write there"
        )


def _server_line(report: RemoteCheck) -> str:
    if "://" not in report.url and report.server is None:
        return "A directory; what another machine sees late over a network cannot be found out here"
    if report.server is None:
        return "A server of which nothing is known: it was tried out, which proves no guarantee"
    if not report.is_known:
        return f"{report.server}: it was tried out, which proves no guarantee"
    return f"{report.server}, whose guarantees are known"
