"""``snap remote``, ``push``, ``fetch``, ``pull``, ``clone``: history elsewhere, and from there."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import click

import treesnap
from treesnap.cli.command import SnapGroup, command, pass_invocation, privileged_option
from treesnap.cli.failure import ExitCode
from treesnap.cli.invocation import Invocation
from treesnap.cli.output.as_json import restore_fields
from treesnap.cli.output.as_text import (
    path_text,
    privilege_lines,
    restore_line,
    restore_notes,
    short_id,
    skipped_lines,
)
from treesnap.cli.output.terminal import time_text
from treesnap.cli.parameters import SIZE, WholeNumber
from treesnap.core.model.errors import (
    ErrorCode,
    InvalidArgument,
    NotFound,
    RemoteFailed,
    printable,
    quoted,
)
from treesnap.core.model.quantities import count_text, first_lines, size_text
from treesnap.remote.commands.secret import (
    Source,
    new_passphrase,
    new_secret_of,
    remember,
    secret_of,
)

if TYPE_CHECKING:
    from treesnap.core.handle import Handle
    from treesnap.core.model.entities import Snapshot
    from treesnap.remote import (
        FetchResult,
        HistoryInfo,
        PullResult,
        RemoteCheck,
        RemoteInfo,
        Remotes,
        RolePolicy,
    )
    from treesnap.remote.connection import Opener

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SHOWN_MAX = 10
JOBS = 2
"""As in the library, which is not loaded for a text of help."""


def _transfer_options(function: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of commands that send or receive packs."""
    limit_rate = click.option(
        "--limit-rate",
        type=SIZE,
        metavar="SIZE",
        help="Send and receive no more than this a second.",
    )
    jobs = click.option(
        "--jobs",
        type=WholeNumber(1, 64),
        default=JOBS,
        metavar="N",
        help=f"Send or receive N packs at the same time [{JOBS}].",
    )
    return limit_rate(jobs(function))


@click.group("remote", cls=SnapGroup)
def remote() -> None:
    """Keep history on object storage or on another disk.

    A remote is a bucket (s3://, gs://, az://) or a directory. 'snap push' stores
    snapshots there, 'snap clone' makes a directory of them on any machine.
    """


@remote.command(
    "add",
    examples=[
        "snap remote add disk /mnt/disk/snapshots",
        "snap remote add backup s3://bucket/me",
        "snap remote add backup s3://bucket/me --passphrase-command 'pass treesnap'",
    ],
)
@click.argument("name")
@click.argument("url")
@click.option(
    "--encrypt/--no-encrypt",
    "encrypts",
    default=None,
    help="Whether a new remote is encrypted; a bucket is unless told otherwise.",
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
) -> None:
    """Add a remote, and set it up where there is none.

    The server is tried out first. A new remote in a bucket is encrypted: the passphrase
    comes from --passphrase-command, --passphrase-file, $TREESNAP_REMOTE_KEY,
    $TREESNAP_REMOTE_PASSPHRASE, or the terminal, in this order. The remote cannot be
    read without it, and it cannot be recovered.
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


@remote.command("list", prints_only=True, examples=["snap remote list"])
@pass_invocation
def list_remotes(invocation: Invocation) -> None:
    """List the remotes that the store knows."""
    with invocation.open(progress=False, needs_root=False) as handle:
        found = _remotes(handle).list()
    if not found:
        invocation.output.note("No remotes")
    invocation.output.result("remote.list", lambda: {"remotes": found}, _remote_lines(found))


@remote.command("show", prints_only=True, examples=["snap remote show backup"])
@click.argument("name", required=False)
@pass_invocation
def show(invocation: Invocation, *, name: str | None) -> None:
    """List the histories on a remote.

    Columns: id, time of the newest snapshot, number of snapshots, name. NAME may be left
    out where there is only one remote.
    """
    with invocation.open(progress=False, needs_root=False) as handle:
        found = _remotes(handle).histories(name)
    if not found:
        invocation.output.note("No histories")
    invocation.output.result("remote.show", lambda: {"histories": found}, _history_lines(found))


@remote.command("remove", examples=["snap remote remove backup"])
@click.argument("name")
@pass_invocation
def remove(invocation: Invocation, *, name: str) -> None:
    """Forget a remote; what is stored there stays."""
    with invocation.open(progress=False, needs_root=False) as handle:
        _remotes(handle).remove(name)
    line = f"Forgot the remote {name}; what is stored there stays"
    invocation.output.result("remote.remove", lambda: {"name": name}, [line])


@remote.command("delete", examples=["snap remote delete backup 5d41402abc4b"])
@click.argument("name")
@click.argument("history")
@pass_invocation
def delete(invocation: Invocation, *, name: str, history: str) -> None:
    """Delete a history on a remote, with all its snapshots.

    For machines that are gone: one that is not pushes them again. HISTORY is a name, or the
    beginning of an id, as 'snap remote show' prints them. Then 'snap remote gc' frees the space.
    """
    with invocation.open(progress=False, needs_root=False) as handle:
        info = _remotes(handle).delete(name, history)
    count = count_text(info.snapshots, "snapshot")
    line = f"Deleted {count} of {printable(info.name)} ({info.id[:12]}) on {name}"
    invocation.output.result("remote.delete", info._asdict, [line])


@remote.command("gc", examples=["snap remote gc backup"])
@click.argument("name", required=False)
@pass_invocation
def collect(invocation: Invocation, *, name: str | None) -> None:
    """Free the space of everything on a remote that no snapshot needs.

    Other machines may push and clone meanwhile.
    """
    with invocation.open(needs_root=False) as handle:
        collected = _remotes(handle).collect(name)
    line = f"Removed {count_text(collected.packs, 'pack')}, {size_text(collected.freed_bytes)}"
    invocation.output.result("remote.gc", collected._asdict, [line])


@remote.command("check", prints_only=True, examples=["snap remote check backup"])
@click.argument("name", required=False)
@pass_invocation
def check(invocation: Invocation, *, name: str | None) -> None:
    """Try out the server of a remote, and say what can be relied on.

    Writes some files and removes them. Exits 3 where not every command can be relied on. NAME
    may be left out where there is only one remote.
    """
    with invocation.open(progress=False, needs_root=False) as handle:
        found = _remotes(handle).check(name)
    invocation.output.result("remote.check", found.fields, check_lines(found))
    if not found.is_reliable:
        click.get_current_context().exit(ExitCode.REFUSED)


@remote.command(
    "policy",
    prints_only=True,
    examples=["snap remote policy backup", "snap remote policy backup --role writer"],
)
@click.argument("name", required=False)
@click.option(
    "--role",
    type=click.Choice(["reader", "writer", "collector"]),
    help="Print the rules for one role alone.",
)
@pass_invocation
def policy(invocation: Invocation, *, name: str | None, role: str | None) -> None:
    """Print the rules that a bucket needs for machines that read, write or collect.

    For S3 a document for IAM, elsewhere what to set, in words. Nothing is removed with the
    credentials of a writer. Asks no server.
    """
    from treesnap.remote import Role

    with invocation.open(progress=False, needs_root=False) as handle:
        found = _remotes(handle).policy(name, Role(role) if role is not None else None)
    invocation.output.result("remote.policy", found._asdict, _policy_lines(found.roles))
    for item in found.roles:
        if item.policy is not None:
            for sentence in item.advice:
                invocation.output.note(sentence)


@remote.group("key", cls=SnapGroup)
def key() -> None:
    """List, add and remove what opens an encrypted remote.

    Several passphrases and keys may open one. A secret is changed by adding the new one and
    removing the old one; nothing else is written again.
    """


@key.command("list", prints_only=True, examples=["snap remote key list backup"])
@click.argument("name", required=False)
@pass_invocation
def list_keys(invocation: Invocation, *, name: str | None) -> None:
    """List the key slots of an encrypted remote.

    Columns: id, what opens it, and whether it is the one in use.
    """
    with invocation.open(progress=False, needs_root=False) as handle:
        found = _remotes(handle).keys(name)
    lines = [
        f"{item.id[:12]}  {item.kind}" + ("  (in use)" if item.is_used else "") for item in found
    ]
    invocation.output.result("remote.key.list", lambda: {"keys": found}, lines)


@key.command(
    "add",
    examples=["snap remote key add backup", "snap remote key add backup --raw-key"],
)
@click.argument("name", required=False)
@click.option("--passphrase-file", metavar="FILE", help="Read the new passphrase from a file.")
@click.option("--passphrase-command", metavar="COMMAND", help="Run a command that prints it.")
@click.option("--raw-key", is_flag=True, help="Make a raw key, and print it.")
@pass_invocation
def add_key(
    invocation: Invocation,
    *,
    name: str | None,
    passphrase_file: str | None,
    passphrase_command: str | None,
    raw_key: bool,
) -> None:
    """Let another passphrase or key open an encrypted remote.

    The new passphrase comes from --passphrase-command, --passphrase-file,
    $TREESNAP_REMOTE_NEW_PASSPHRASE, or the terminal.
    """
    from treesnap.remote.keys import Secret, new_raw_key

    made = new_raw_key() if raw_key else None

    def secret() -> Secret:
        if made is not None:
            return Secret.raw_key(made)
        return new_passphrase(passphrase_command, passphrase_file)

    with invocation.open(progress=False, needs_root=False) as handle:
        info = _remotes(handle).add_key(name, secret)
    lines = [f"Added the key slot {info.id[:12]}: {info.kind}", *([made] if made else [])]
    invocation.output.result("remote.key.add", lambda: {**info._asdict(), "raw_key": made}, lines)


@key.command("remove", examples=["snap remote key remove backup 3f2a9c"])
@click.argument("name")
@click.argument("key_id", metavar="KEY")
@pass_invocation
def remove_key(invocation: Invocation, *, name: str, key_id: str) -> None:
    """Remove a key slot: its secret opens the remote no longer.

    KEY is the beginning of an id that 'list' shows. A person who kept the secret and a
    copy of the slot can still read the remote.
    """
    with invocation.open(progress=False, needs_root=False) as handle:
        info = _remotes(handle).remove_key(name, key_id)
    line = f"Removed the key slot {info.id[:12]}: {info.kind}"
    invocation.output.result("remote.key.remove", info._asdict, [line])


@key.command("rotate", examples=["snap remote key rotate backup"])
@click.argument("name", required=False)
@click.option(
    "--take-over", is_flag=True, help="Go on after another machine that was stopped in the middle."
)
@pass_invocation
def rotate_keys(invocation: Invocation, *, name: str | None, take_over: bool) -> None:
    """Encrypt what is stored from now on with new keys.

    A person who kept a removed secret and a copy of its slot cannot read that. The secret in use
    opens everything; other secrets open only what was stored before, until they are removed
    and added again. Nothing is written again.
    """
    with invocation.open(progress=False, needs_root=False) as handle:
        remotes = _remotes(handle)
        info = remotes.rotate_keys(name, takes_over=take_over)
        older = [item.id for item in remotes.keys(name) if item.generation < info.generation]
    line = f"Rotated the keys: new files are of generation {info.generation}"
    invocation.output.result(
        "remote.key.rotate", lambda: {**info._asdict(), "older": older}, [line]
    )
    if older:
        invocation.output.note(
            f"{count_text(len(older), 'key slot opens', 'key slots open')} only what was stored "
            "before: remove them, and add their secrets again"
        )


@command(
    "push",
    examples=["snap push", "snap push backup latest", "snap push --all --dry-run"],
)
@click.argument("name", metavar="[REMOTE]", required=False)
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
) -> None:
    """Store snapshots of the root on a remote.

    Without REF all that the remote lacks and a person asked for. REMOTE may be left out where
    there is only one. A push that was interrupted goes on where it was.
    """
    # A watcher that pushes has them blocked, and its children inherit that.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    with invocation.open() as handle:
        ids = [invocation.resolve(handle, ref) for ref in refs]
        result = _remotes(handle, limit_rate, jobs).push(
            name,
            ids,
            since=invocation.resolve(handle, since) if since is not None else None,
            every_kind=every_kind,
            dry_run=dry_run,
        )
    count = count_text(len(result.snapshots), "snapshot")
    if not result.snapshots:
        lines = [f"{result.remote} lacks nothing"]
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
@click.argument("place", metavar="REMOTE[#HISTORY[@REF]]")
@click.argument("target", metavar="DIR")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--lazy", is_flag=True, help="Leave older snapshots there until they are needed.")
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
    privileged: bool,
    limit_rate: int | None,
    jobs: int,
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
        remotes = _remotes(cloned, limit_rate, jobs)
        result = remotes.clone(
            where, fragment or None, paths=paths, lazy=lazy, privileged=privileged
        )
        known = {name for info in remotes.list() for name in (info.name, info.url)}
        is_known = not known.isdisjoint({where, os.path.abspath(where)})
    line = (
        f"Cloned {short_id(result.snapshot_id)} into {printable(result.root)}: "
        f"{count_text(result.fetched.snapshots, 'snapshot')}"
    )
    invocation.output.result(
        "clone",
        lambda: {
            "root": result.root,
            "history_id": result.history_id,
            "snapshot_id": result.snapshot_id,
            "snapshots": result.fetched.snapshots,
            "objects": result.fetched.objects,
            "size_bytes": result.fetched.size_bytes,
            "privileges": result.privileges,
        },
        [line],
    )
    invocation.output.note(*privilege_lines(result.privileges))
    if not is_known:
        add = invocation.command_text("remote", "add", "NAME", where)
        invocation.output.note(f"To push from there, add the remote first: {add}")


@command(
    "fetch",
    examples=[
        "snap fetch backup garden",
        "snap fetch backup garden@latest",
        "snap fetch backup garden@3f2a9c src docs/notes.txt",
    ],
)
@click.argument("name", metavar="[REMOTE]", required=False)
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
) -> None:
    """Bring a history of another machine into the store.

    Its snapshots are REMOTE/HISTORY@REF then, in every command that takes a REF, and the remote
    is not needed for them. With REF only that snapshot comes, with PATHs, which are relative
    to the root, only these of it. The root's files stay as they are. REMOTE and HISTORY may be left
    out where there is only one. A fetch that was interrupted goes on where it was.
    """
    with invocation.open() as handle:
        result = _remotes(handle, limit_rate, jobs).fetch(name, history, paths=paths)
    invocation.output.result("fetch", lambda: _fetch_fields(result), [_fetch_line(result)])


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
    }


@command("pull", examples=["snap pull", "snap pull backup garden", "snap pull backup --theirs"])
@click.argument("name", metavar="[REMOTE]", required=False)
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
) -> None:
    """Bring what another machine changed into the root.

    What only one side changed since both were the same is taken from it; what both changed stays
    as it is here. The state before is captured first: 'snap undo' takes the pull back. REMOTE and
    HISTORY may be left out where there is only one that is not the root's own.
    """
    with invocation.open(ends_restored=True) as handle:
        result = _remotes(handle, limit_rate, jobs).pull(
            name, history, overwrite=theirs, privileged=privileged
        )
    restored = result.restore
    invocation.output.result(
        "pull",
        lambda: {
            **_fetch_fields(result.fetch),
            "conflicts": result.conflicts,
            "restore": None if restored is None else restore_fields(restored),
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
    remotes = _remotes(handle)
    if all(item.name != remote for item in remotes.list()):
        return ref
    with suppress(NotFound, InvalidArgument):
        found = handle.resolve(ref, paths=paths or None)
        if found.name == ref:
            return found.id
    try:
        return remotes.fetch(remote, history, "latest", paths).ref
    except RemoteFailed as error:
        with suppress(NotFound):
            found = handle.resolve(ref, paths=paths or None)
            invocation.output.note(f"{error.message}: what was fetched before is used")
            return found.id
        raise


def require_remote(handle: Handle, name: str) -> None:
    """Raises NotFound for a remote that the store does not know."""
    if all(item.name != name for item in _remotes(handle).list()):
        raise NotFound(f"There is no remote {quoted(name)}", code=ErrorCode.REMOTE_NOT_FOUND)


def snapshots_on(handle: Handle, place: str) -> tuple[Snapshot, ...]:
    """Returns the snapshots of ``REMOTE[/HISTORY]``, newest first; by default the root's own."""
    name, _, history = place.partition("/")
    return _remotes(handle).snapshots(name, history or None)


def _remotes(handle: Handle, limit_rate: int | None = None, jobs: int = JOBS) -> Remotes:
    from treesnap.remote import Remotes

    return Remotes(handle, secret_of(handle), _opener(limit_rate), jobs=jobs)


def _opener(limit_rate: int | None) -> Opener:
    from treesnap.remote.connection import limited, open_blobs

    return open_blobs if limit_rate is None else limited(open_blobs, limit_rate)


def _remote_lines(found: Iterable[RemoteInfo]) -> Iterator[str]:
    for info in found:
        words = "" if info.is_encrypted else "  (not encrypted)"
        yield f"{info.name}  {printable(info.url)}{words}"


def _history_lines(found: Iterable[HistoryInfo]) -> Iterator[str]:
    for info in found:
        newest = time_text(info.newest_at_ns)
        yield f"{info.id[:12]}  {newest:19}  {info.snapshots:>6,}  {printable(info.name)}"


def _policy_lines(found: Sequence[RolePolicy]) -> Iterator[str]:
    """Yields a document alone for one role, so that it can be passed on."""
    import json

    for item in found:
        if len(found) > 1:
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


def check_lines(found: RemoteCheck) -> Iterator[str]:
    """Yields what a remote is, what its server guarantees, and what follows from that."""
    yield f"{found.name}  {printable(found.url)}"
    yield _server_line(found)
    if found.key_slots is None:
        yield "Not encrypted: a user who can read it can read the snapshots"
    else:
        yield f"Encrypted, with {count_text(found.key_slots, 'key slot')}"
    yield _CREATION[found.creation]
    if found.lists_current:
        yield "Lists what was written just before"
    else:
        yield "May list late what was written"
    if found.has_ranges:
        yield "Reads parts of files"
    else:
        yield "Reads no parts of files: what needs a part of a pack reads all of it"
    yield from (f"Found: {reason}" for reason in found.reasons)
    if not found.is_sound and found.may_collect:
        yield (
            "Do not run 'snap remote gc': it could lose snapshots, though the server could be "
            "relied on when the remote was set up"
        )
    elif found.collection == "one":
        which = "This machine" if found.may_collect else "Another machine"
        yield f"{which} alone may collect garbage"
    elif found.may_collect:
        yield "Any machine may collect garbage"
    elif found.is_sound:
        yield (
            "No machine may collect garbage: the server could not be relied on when the remote "
            "was set up"
        )
    else:
        yield "No machine may collect garbage; push and clone work"


def _server_line(found: RemoteCheck) -> str:
    if "://" not in found.url:
        return "A directory; what another machine sees late over a network cannot be found out here"
    if found.server is None:
        return "A server of which nothing is known: it was tried out, which proves no guarantee"
    if not found.is_known:
        return f"{found.server}: it was tried out, which proves no guarantee"
    return f"{found.server}, whose guarantees are known"
