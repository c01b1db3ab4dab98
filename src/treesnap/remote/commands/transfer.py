"""``snap push``, ``fetch``, ``pull`` and ``clone``: history to a remote, and from there."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING

import click

import treesnap
from treesnap.cli.command import command, pass_invocation
from treesnap.cli.declarations import option, several_options
from treesnap.cli.failure import ExitCode, advised
from treesnap.cli.invocation import Invocation
from treesnap.cli.options import privileged_option
from treesnap.cli.output.as_text import (
    path_text,
    privilege_lines,
    restore_line,
    restore_notes,
    short_id,
    skipped_lines,
)
from treesnap.cli.parameters import SIZE, Seconds, WholeNumber
from treesnap.core.model.errors import (
    Corrupt,
    ErrorCode,
    InvalidArgument,
    NotFound,
    RemoteFailed,
    printable,
)
from treesnap.core.model.quantities import count_text, first_few, first_lines, size_text
from treesnap.remote.commands.completion import remote_argument
from treesnap.remote.commands.secret import secret_of

if TYPE_CHECKING:
    from treesnap.core.handle import Handle
    from treesnap.remote import FetchResult, PullResult, Remotes
    from treesnap.remote.fetch import Fetched

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SHOWN_MAX = 10
JOBS = 2
RETRY_FOR_S = 300.0
"""As in the library, which is not loaded for a text of help."""


_transfer_options = several_options(
    option(
        "--limit-rate",
        type=SIZE,
        metavar="SIZE",
        help="Send and receive no more than this a second.",
    ),
    option(
        "--jobs",
        type=WholeNumber(1, 64),
        default=JOBS,
        metavar="N",
        help=f"Send or receive N packs at the same time [{JOBS}].",
    ),
    option(
        "--retry-for",
        type=Seconds(0),
        default=RETRY_FOR_S,
        metavar="SECONDS",
        help=f"Wait so long for a bucket's server that does not answer [{RETRY_FOR_S:.0f}].",
    ),
    option(
        "--accept-rollback",
        is_flag=True,
        help="Take a remote that was set back as it is now.",
    ),
)
"""For commands that send or receive packs."""


@command(
    "push",
    examples=["snap push", "snap push backup latest", "snap push --all --dry-run"],
)
@remote_argument("name", metavar="[REMOTE]", required=False)
@click.argument("refs", metavar="[REF]...", nargs=-1)
@click.option("--since", metavar="REF", help="Only snapshots that came after REF.")
@click.option("--all", "every_kind", is_flag=True, help="Also snapshots that no person asked for.")
@click.option("--dry-run", is_flag=True, help="Only say what would be stored.")
@_transfer_options
@pass_invocation
def push(
    invocation: Invocation,
    *,
    name: str | None,
    refs: Sequence[str],
    since: str | None,
    every_kind: bool,
    dry_run: bool,
    limit_rate: int | None,
    jobs: int,
    retry_for: float,
    accept_rollback: bool,
) -> None:
    """Store snapshots of the root on a remote.

    Without REF all that the remote lacks and a person asked for. REMOTE may be left out where
    there is only one. A push that was interrupted goes on where it was.
    """
    # A watcher that pushes has them blocked, and its children inherit that.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    with invocation.open() as handle:
        ids = [invocation.resolve(handle, ref) for ref in refs]
        result = _remotes(
            handle, limit_rate, jobs, retry_for, accept_rollback=accept_rollback
        ).push(
            name,
            ids,
            since=invocation.resolve(handle, since) if since is not None else None,
            every_kind=every_kind,
            dry_run=dry_run,
        )
    count = count_text(len(result.snapshots), "snapshot")
    if not result.snapshots:
        asked_for = "" if every_kind or refs else " that you asked for"
        lines = [f"{result.remote} lacks nothing{asked_for}"]
    elif dry_run:
        size = size_text(result.stored.size_bytes)
        requests = count_text(result.requests or 0, "request")
        lines = [f"Would store {count} on {result.remote}: {size} new, in {requests}"]
    else:
        size = size_text(result.stored.size_bytes)
        lines = [f"Stored {count} on {result.remote}: {size} new"]
    invocation.output.result(
        "push",
        lambda: {
            "remote": result.remote,
            "history_id": result.history_id,
            "snapshots": result.snapshots,
            "objects": result.stored.objects,
            "size_bytes": result.stored.size_bytes,
            "requests": result.requests,
            "dry_run": dry_run,
        },
        lines,
    )


@command(
    "clone",
    examples=[
        "snap clone backup DIR",
        "snap clone s3://bucket/me#garden DIR",
        "snap clone /mnt/disk/snapshots#garden@3f2a9c DIR",
        "snap clone backup#garden DIR src docs/notes.txt",
        "snap clone --lazy backup#garden DIR",
    ],
)
@remote_argument("place", metavar="REMOTE[#HISTORY[@REF]]")
@click.argument("target", metavar="DIR")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--lazy", is_flag=True, help="Leave older snapshots there until they are needed.")
@click.option(
    "--encrypt/--no-encrypt",
    "encrypted",
    default=None,
    help="Whether the remote at an address has to be encrypted; see 'snap remote add'.",
)
@privileged_option
@_transfer_options
@pass_invocation
def clone(
    invocation: Invocation,
    *,
    place: str,
    target: str,
    paths: Sequence[str],
    lazy: bool,
    encrypted: bool | None,
    privileged: bool,
    limit_rate: int | None,
    jobs: int,
    retry_for: float,
    accept_rollback: bool,
) -> None:
    """Make a directory of a history on a remote.

    REMOTE is a remote's name or address. DIR must be empty, or not exist; it gets the newest
    snapshot, or REF, and the whole history. HISTORY is a name or the beginning of an id, and may
    be left out where there is only one. With PATHs, which are relative to DIR, only these come, in
    one snapshot. With --lazy older snapshots come when 'snap restore REMOTE/HISTORY@REF' asks for
    them. A clone that was interrupted goes on where it was.
    """
    where, _, fragment = place.partition("#")
    if not where or not target:
        raise InvalidArgument("REMOTE and DIR cannot be empty")
    if "?" in fragment and _is_bucket(where):
        raise InvalidArgument(
            "The options of an address, from its '?' on, come before the '#' and the history: "
            "s3://BUCKET/PATH?endpoint=URL#HISTORY"
        )
    base = invocation.directory or os.getcwd()
    with invocation.open(makes_store=True, needs_root=False) as handle:
        given = handle.context
        cloned = treesnap.open(
            os.path.join(base, target),
            given.store_path,
            monitor=given.monitor,
            wait_s=given.wait_s,
        )
        remotes = _remotes(cloned, limit_rate, jobs, retry_for, accept_rollback=accept_rollback)
        names = {name for info in remotes.list() for name in (info.name, info.url)}
        is_known = not names.isdisjoint({where, os.path.abspath(where)})
        add = invocation.command_text("remote", "add", "NAME", where)
        with _naming_first(add) if not is_known else nullcontext():
            result = remotes.clone(
                where,
                fragment or None,
                paths=paths,
                lazy=lazy,
                privileged=privileged,
                encrypted=encrypted,
            )
    line = (
        f"Cloned {short_id(result.snapshot_id)} into {printable(result.root)}: "
        f"{count_text(len(result.fetched.ids), 'snapshot')}"
    )
    invocation.output.result(
        "clone",
        lambda: {
            "root": result.root,
            "history_id": result.history_id,
            "snapshot_id": result.snapshot_id,
            "snapshots": len(result.fetched.ids),
            "objects": result.fetched.objects,
            "size_bytes": result.fetched.size_bytes,
            "privileges": result.privileges,
            "conflicts": result.conflicts,
            **_damage_fields(result.fetched, result.unreadable),
        },
        [line],
    )
    invocation.output.note(*privilege_lines(result.privileges))
    if result.conflicts:
        paths = count_text(len(result.conflicts), "path")
        stays = "stays as it is" if len(result.conflicts) == 1 else "stay as they are"
        invocation.output.note(
            f"{paths} that changed there since the clone was interrupted {stays}:",
            *(f"  {text}" for text in first_lines(result.conflicts, path_text, _SHOWN_MAX)),
        )
    if not is_known:
        invocation.output.note(f"To push from there, add the remote first: {add}")
    _exit_if_older(invocation, result.snapshot_id, result.fetched, result.unreadable)


@contextmanager
def _naming_first(add: str) -> Iterator[None]:
    """Begins the advice about a damaged remote with the command that gives it a name."""
    try:
        yield
    except Corrupt as error:
        if error.code is ErrorCode.REMOTE_DAMAGED:
            advised(error, f"'{add}' gives it a name; then {error.hint}")
        raise


@command(
    "fetch",
    examples=[
        "snap fetch backup garden",
        "snap fetch backup garden@latest",
        "snap fetch backup garden@3f2a9c src docs/notes.txt",
    ],
)
@remote_argument("name", metavar="[REMOTE]", required=False)
@click.argument("history", metavar="[HISTORY[@REF]]", required=False)
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@_transfer_options
@pass_invocation
def fetch(
    invocation: Invocation,
    *,
    name: str | None,
    history: str | None,
    paths: Sequence[str],
    limit_rate: int | None,
    jobs: int,
    retry_for: float,
    accept_rollback: bool,
) -> None:
    """Bring a history of another machine into the store.

    Its snapshots are REMOTE/HISTORY@REF then, in every command that takes a REF, and the remote
    is not needed for them. With REF only that snapshot comes, with PATHs, which are relative
    to the root, only these of it. The root's files stay as they are. REMOTE and HISTORY may be left
    out where there is only one. A fetch that was interrupted goes on where it was.
    """
    with invocation.open() as handle:
        result = _remotes(
            handle, limit_rate, jobs, retry_for, accept_rollback=accept_rollback
        ).fetch(name, history, paths=paths)
    invocation.output.result("fetch", lambda: _fetch_fields(result), [_fetch_line(result)])
    _exit_if_older(invocation, result.newest_id, result.fetched, result.unreadable)


def _is_bucket(address: str) -> bool:
    from treesnap.remote.connection import directory_of

    return directory_of(address) is None


def _fetch_line(result: FetchResult) -> str:
    where = f"{result.remote}/{printable(result.history_name)}"
    count = count_text(result.fetched.snapshots, "snapshot")
    if not result.fetched.snapshots:
        return f"{where} has nothing new"
    return f"Fetched {count} of {where}: {size_text(result.fetched.size_bytes)}"


def _fetch_fields(result: FetchResult) -> dict[str, object]:
    return {
        "remote": result.remote,
        "history_id": result.history_id,
        "history_name": result.history_name,
        "ref": result.ref,
        "snapshot_id": result.newest_id,
        "snapshots": result.fetched.snapshots,
        "objects": result.fetched.objects,
        "size_bytes": result.fetched.size_bytes,
        **_damage_fields(result.fetched, result.unreadable),
    }


def _damage_fields(fetched: Fetched, unreadable: Sequence[str]) -> dict[str, object]:
    return {"damaged": fetched.left_out, "unreadable": unreadable}


def _exit_if_older(
    invocation: Invocation, newest_id: str, fetched: Fetched, unreadable: Sequence[str]
) -> None:
    """Says, and exits with it, that a newer snapshot may be there that cannot be read."""
    if unreadable:
        count = count_text(len(fetched.ids), "snapshot")
        invocation.output.note(
            f"A newer snapshot may be in what cannot be read: {first_few(unreadable, printable)}",
            f"This is {short_id(newest_id)}, the newest of {count} that can be read",
        )
        click.get_current_context().exit(ExitCode.DAMAGED)


@command("pull", examples=["snap pull", "snap pull backup garden", "snap pull backup --theirs"])
@remote_argument("name", metavar="[REMOTE]", required=False)
@click.argument("history", metavar="[HISTORY]", required=False)
@click.option("--theirs", is_flag=True, help="Take what both sides changed from there.")
@privileged_option
@_transfer_options
@pass_invocation
def pull(
    invocation: Invocation,
    *,
    name: str | None,
    history: str | None,
    theirs: bool,
    privileged: bool,
    limit_rate: int | None,
    jobs: int,
    retry_for: float,
    accept_rollback: bool,
) -> None:
    """Bring what another machine changed into the root.

    What only one side changed since both were the same is taken from it; what both changed stays
    as it is here. The state before is captured first: 'snap undo' takes the pull back. REMOTE and
    HISTORY may be left out where there is only one that is not the root's own.
    """
    with invocation.open(ends_restored=True) as handle:
        result = _remotes(
            handle, limit_rate, jobs, retry_for, accept_rollback=accept_rollback
        ).pull(name, history, overwrite=theirs, privileged=privileged)
    restored = result.restore
    invocation.output.result(
        "pull",
        lambda: {
            **_fetch_fields(result.fetch),
            "conflicts": result.conflicts,
            "restore": None if restored is None else restored.to_dict(),
            "left_out": result.left_out,
        },
        list(_pull_lines(result)),
    )
    invocation.output.note(*skipped_lines(result.left_out, "left out"))
    if result.conflicts:
        is_one = len(result.conflicts) == 1
        here = "kept as it is here" if is_one else "kept as they are here"
        done = "taken from there" if theirs else here
        invocation.output.note(
            f"{count_text(len(result.conflicts), 'path')} changed on both sides, and {done}:",
            *(f"  {text}" for text in first_lines(result.conflicts, path_text, _SHOWN_MAX)),
        )
        if not theirs:
            invocation.output.note(*_take_theirs_lines(invocation, result))
    if restored is not None:
        invocation.output.note(*restore_notes(restored, invocation.command_text("undo")))


def _take_theirs_lines(invocation: Invocation, result: PullResult) -> Iterator[str]:
    """Yields how to take what both sides changed from there after all.

    A pull that changed something counts as merged, until it is undone. Where one changed nothing
    there is nothing to undo but what was restored before.
    """
    remote, history = result.fetch.remote, result.fetch.history_id[:12]
    one = invocation.command_text("restore", f"{remote}/{history}", "PATH")
    yield f"To take one from there: {one}"
    every = invocation.command_text("pull", remote, history, "--theirs")
    if result.restore is not None and result.restore.safety_id is not None:
        every = f"{invocation.command_text('undo')} && {every}"
    yield f"To take all from there: {every}"


def _pull_lines(result: PullResult) -> Iterator[str]:
    """Yields what was fetched, unless it was there before, and what became of the root."""
    if result.restore is None or result.fetch.fetched.snapshots:
        yield _fetch_line(result.fetch)
    if result.restore is not None:
        yield restore_line(result.restore)
    elif result.fetch.fetched.snapshots:
        yield "Nothing to merge: the root has what these snapshots changed"


def fetched_ref(invocation: Invocation, handle: Handle, ref: str, paths: Sequence[str]) -> str:
    """Returns a REF for the library; the snapshot of ``REMOTE/HISTORY[@REF]`` is fetched first.

    A snapshot of the root that has this name comes first, as in every command. Where the remote
    cannot be reached, one that was fetched before is used. Any other REF is returned as it is.
    """
    remote, separator, history = ref.partition("/")
    if not separator or not history:
        return ref
    remotes = _remotes(handle, retry_for=0)  # what was fetched before is there at once
    if all(item.name != remote for item in remotes.list()):
        return ref
    with suppress(NotFound, InvalidArgument):
        snapshot = handle.resolve(ref, paths=paths or None)
        if snapshot.name == ref:
            return snapshot.id
    try:
        return remotes.fetch(remote, history, "latest", paths).ref
    except RemoteFailed as error:
        with suppress(NotFound):
            snapshot = handle.resolve(ref, paths=paths or None)
            invocation.output.note(f"{error.message}: what was fetched before is used")
            return snapshot.id
        raise


def _remotes(
    handle: Handle,
    limit_rate: int | None = None,
    jobs: int = JOBS,
    retry_for: float = RETRY_FOR_S,
    *,
    accept_rollback: bool = False,
) -> Remotes:
    from treesnap.remote import Remotes
    from treesnap.remote.connection import limited, patient

    opener = patient(handle.context.monitor, retry_for)
    if limit_rate is not None:
        opener = limited(opener, limit_rate)
    return Remotes(handle, secret_of(handle), opener, jobs=jobs, accepts_rollback=accept_rollback)
