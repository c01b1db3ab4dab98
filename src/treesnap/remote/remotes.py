"""The door to remotes, beside :class:`treesnap.Handle`: one method for each command.

>>> import treesnap
>>> from treesnap.remote import Remotes
>>> remotes = Remotes(treesnap.open("garden"))                   # doctest: +SKIP
>>> remotes.add("disk", "/mnt/disk/garden", encrypted=False)     # doctest: +SKIP
>>> remotes.push("disk")                                         # doctest: +SKIP
"""

from __future__ import annotations

import os
import platform
import re
import stat
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from copy import copy
from functools import partial
from typing import TYPE_CHECKING

from treesnap.core.codec.snapshot import decode_snapshot, snapshot_id
from treesnap.core.fs.os_errors import translating_os_errors
from treesnap.core.model import treepath
from treesnap.core.model.entries import Skipped, Totals
from treesnap.core.model.errors import (
    Busy,
    Corrupt,
    ErrorCode,
    GenerationMissing,
    InvalidArgument,
    NotFound,
    NotOnRemote,
    Refused,
    RemoteFailed,
    RemoteNotNamed,
    StoreMissing,
    WarningCode,
    quoted,
)
from treesnap.core.model.events import Phase
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.presentation import Fields, Record
from treesnap.core.model.quantities import count_text
from treesnap.core.model.requests import CaptureRequest
from treesnap.core.model.results import (
    Privileges,
    PrunePolicy,
    PruneResult,
    RestoreResult,
    VerifyResult,
)
from treesnap.core.model.snapshots import Snapshot, SnapshotId, SnapshotKind
from treesnap.core.model.treepath import PathLike
from treesnap.core.ops.access import locked_root, opened, recover
from treesnap.core.ops.context import Context, Session, refuse_dangerous
from treesnap.core.ops.create import create
from treesnap.core.ops.maintenance.config import settings_of
from treesnap.core.ops.maintenance.space import rules_of
from treesnap.core.ops.merge.trees import ConflictRule, MergeRequest, merge
from treesnap.core.ops.privileges import MERGED
from treesnap.core.ops.references import resolve_in
from treesnap.core.ops.restore.attempt import refuse_covered
from treesnap.core.ops.restore.plan import RestoreRequest
from treesnap.core.ops.trust import real_target, refuse_foreign_remote
from treesnap.core.ops.undo import restore
from treesnap.core.ops.user_settings import is_safe_remote
from treesnap.core.store.lock import held
from treesnap.core.store.maintenance.retention import Decision, Policy, decide
from treesnap.core.store.roots import Root, load_history, registered_roots
from treesnap.remote.blobs.wrappers import CreateOnly, RoomKept
from treesnap.remote.cache import FileCache
from treesnap.remote.check import RemoteCheck, faults_of, try_out
from treesnap.remote.collector import Collected, Collector, Rebuilt
from treesnap.remote.connection import (
    Connection,
    KeyInfo,
    Opener,
    PossibleSecret,
    SecretSource,
    connect,
    directory_of,
    expects_encryption,
    keeping_reserve,
    patient,
    read_format,
    removed_if_unused,
    require_encrypted,
    require_remote,
    set_up,
)
from treesnap.remote.copies import Doubled
from treesnap.remote.deliveries import (
    Delivered,
    Inbox,
    Received,
    beginning_of,
    lacking,
    message_of,
    send,
)
from treesnap.remote.fetch import Fetched, LeftOut, Wanted, fetch
from treesnap.remote.fetched import fetched_root
from treesnap.remote.format import RemoteFormat
from treesnap.remote.histories import (
    HistoryInfo,
    RemoteHistory,
    by_history,
    choose,
    choose_with_ref,
    without_deleted,
)
from treesnap.remote.invitation import Invitation
from treesnap.remote.key_slots import ExportedSlots
from treesnap.remote.keys import not_allowed
from treesnap.remote.marks import set_back
from treesnap.remote.merge_bases import merge_bases, merges_without_effect
from treesnap.remote.objects import RemoteObjects
from treesnap.remote.policy import Role, RolePolicy, role_policies
from treesnap.remote.protocol import Missing, Uploaded, View
from treesnap.remote.push import count_missing, plan_push, push_snapshots
from treesnap.remote.push_source import LocalObjects
from treesnap.remote.records import (
    DELETION,
    FILE_ID_SIZE,
    Collection,
    Deletion,
    Delivery,
    Folder,
    HistoryName,
    KnownRemote,
    Marks,
    MemberRole,
    PushedHistory,
    RemoteName,
    RemoteState,
    newest_heads,
)
from treesnap.remote.registry import (
    Registry,
    check_remote_name,
    delivered_history,
    pushed_history,
    set_delivered_history,
    set_pushed_history,
)
from treesnap.remote.sealing import InboxSealer
from treesnap.remote.spool import Spool
from treesnap.remote.verify import Verification, VerifiedObjects, repaired

if TYPE_CHECKING:
    from treesnap.core.handle import Handle
    from treesnap.remote.blobs.base import Blobs
    from treesnap.remote.keys import Secret

JOBS = 2
"""How many packs are sent or received at the same time by default."""
FOLD_MIN = 64
"""From so many pushes on that no collection has moved into the catalog, a push may do that."""
FOLD_EVERY = 8
"""Of so many commits of a machine, one may."""
_COMMITS_KNOWN_MAX = 1 << 16
"""Commits of a history that are remembered as the root's own."""
_WARNED_MAX = 5
"""So many snapshots that are left out are named by warnings."""
_READABLE_BY_OTHERS = stat.S_IRGRP | stat.S_IROTH

SecretOf = Callable[[KnownRemote], SecretSource]
"""Returns what gives the secret of a remote, which may say where its secret comes from."""


class RemoteInfo(Record):
    """A remote that a store knows."""

    name: str
    url: str
    remote_id: str
    is_encrypted: bool
    may_collect: bool
    appends_only: bool


class MemberInfo(Record):
    """A machine on the list of a remote."""

    id: str
    role: str
    """Writer, member, collector or owner."""
    histories: tuple[str, ...]
    """What its histories are called there."""
    is_own: bool
    """Whether it is this one."""


class Revoked(Record):
    """A machine that was taken off the list of a remote."""

    member: MemberInfo
    generation: int | None
    """Of the keys that were made because it could read; None for a writer."""
    removed: tuple[str, ...]
    """Key slots whose secrets have to be added again."""


class RemotePolicy(Record):
    """The rules that the place of a remote needs."""

    name: str
    url: str
    roles: tuple[RolePolicy, ...]


class PushResult(Record):
    """Outcome of a push."""

    remote: str
    history_id: str
    snapshots: tuple[SnapshotId, ...]
    """Those that the remote did not have, oldest first."""
    stored: Uploaded
    """In a dry run, what would be."""
    requests: int | None = None
    """In a dry run, how many would store it."""


class RemotePruneResult(Record):
    """Outcome of pruning a remote."""

    remote: str
    removed: tuple[Snapshot, ...]
    """Newest first, as ``kept``. Their sequences are those of the remote's history."""
    kept: tuple[Snapshot, ...]
    reasons: Mapping[SnapshotId, tuple[str, ...]]
    """Why each one is kept."""
    dry_run: bool
    policy: PrunePolicy

    @property
    def decisions(self) -> PruneResult:
        """The same without the remote, in the form of a local prune."""
        return PruneResult(self.kept, self.removed, self.reasons, self.dry_run, self.policy)

    def to_dict(self) -> Fields:
        """Returns what ``snap remote prune --json`` prints; ``json.dumps`` takes it."""
        return {"remote": self.remote, **self.decisions.to_dict()}


class RemoteRepairResult(Record):
    """Outcome of repairing a remote."""

    files: tuple[str, ...]
    """Small files that were stored again."""
    commits: tuple[str, ...]
    """Damaged commits that count by what their packs say, from now on without them."""
    removed: tuple[str, ...]
    """Files among the states that no machine of the remote had written."""
    rebuilt: Rebuilt | None = None


class ReceiveResult(Record):
    """Outcome of receiving what writers delivered."""

    remote: str
    received: tuple[Received, ...]
    left: Mapping[str, str]
    """Deliveries that stay in the inbox, and why."""
    incomplete: int
    """How many files are in the inbox beside these: of deliveries that are under way, or were cut
    off, or of what stays."""


class FetchResult(Record):
    """Outcome of a fetch."""

    remote: str
    history_id: str
    history_name: str
    newest_id: SnapshotId
    """The newest one of those that were asked for, as it is in the store."""
    fetched: Fetched
    unreadable: tuple[str, ...] = ()
    """Commits that cannot be read, and that may hold a newer one; empty if a REF was given."""

    @property
    def ref(self) -> str:
        """What names that snapshot in other commands."""
        return f"{self.remote}/{self.history_id}@{self.newest_id}"


class PullResult(Record):
    """Outcome of a pull."""

    fetch: FetchResult
    conflicts: tuple[bytes, ...]
    """Paths that both sides changed, sorted."""
    restore: RestoreResult | None
    """How the root was brought up to date; None where the other side has nothing new."""
    left_out: tuple[Skipped, ...] = ()
    """What was not merged, and stays as it is, because a side excludes it or could not read it."""


class CloneResult(Record):
    """Outcome of a clone."""

    root: str
    history_id: str
    snapshot_id: SnapshotId
    """The one that the directory equals."""
    fetched: Fetched
    privileges: Privileges
    """Set-user-ID bits and the like that were left out, or given if the caller wanted that."""
    conflicts: tuple[bytes, ...] = ()
    """What others changed or made there since the clone was interrupted: it stays as it is."""
    unreadable: tuple[str, ...] = ()
    """Commits that cannot be read, and that may hold a newer snapshot; empty if a REF was given."""


def _no_secret(known: KnownRemote) -> SecretSource:
    def refuse() -> Secret:
        raise Refused(
            f"The remote {quoted(known.url)} is encrypted, and no secret was given for it",
            code=ErrorCode.REMOTE_LOCKED,
        )

    return PossibleSecret(refuse)


class _Cloned(NamedTuple):
    """What one view of a remote brought of a clone."""

    history: RemoteHistory
    fetched: Fetched
    unreadable: tuple[str, ...]


class _RemoteSession(NamedTuple):
    """A session, the remote that it is about, and what is visible there."""

    session: Session
    name: str
    connection: Connection
    view: View

    def histories(self) -> list[RemoteHistory]:
        """Returns the histories there; costs a list, and a request for each new deletion.

        A damaged deletion is a warning.
        """
        return _histories(self.session.context, self.connection, self.view)

    def own_history(self) -> PushedHistory | None:
        """Returns the history that the root has there, or None; raises Corrupt."""
        return pushed_history(self.session.root, self._remote_id)

    def set_own_history(self, pushed: PushedHistory) -> None:
        """Remembers the history that the root has there, durably."""
        set_pushed_history(self.session.root, self._remote_id, pushed)

    def collect(self) -> Collected | None:
        """Collects garbage there; returns None when another collection overtook it.

        What it leaves is remembered, so a remote that is set back to before it is refused.
        """
        with _alone(self, "remote gc"):
            collector = Collector(self.connection.protocol, self.session.context.clock_ns)
            collected = collector.collect()
            _warn_of_deletions(self.session.context, collector.unread)
            self.connection.files.sweep_unfinished()
            self.note(*self.connection.protocol.read_state())
        return collected

    def fold_now_and_then(self, pushed: RemoteName) -> None:
        """Moves what was pushed into catalog and index, where that is much: then a reader asks for
        a few files in place of each push.

        Some of the machines that push do it, each after some of its commits. Costs no other one
        anything, so what keeps it from that is left to the next.
        """
        is_turn = pushed.sequence % FOLD_EVERY == 0
        if len(self.view.commits) < FOLD_MIN or not is_turn or not self.connection.may_collect:
            return
        with suppress(Busy, Corrupt, Refused, RemoteFailed), _alone(self, "remote gc"):
            if Collector(self.connection.protocol).fold():
                self.note(*self.connection.protocol.read_state())

    def note(self, number: int, state: RemoteState, generation: int = 0) -> None:
        """Remembers a state that was read, and keys, if newer ones were made than were opened."""
        registry = _registry(self.session)
        seen = self.connection.marks(number, state)
        if generation > seen.generation:
            seen = seen._replace(generation=generation, owner=b"")
        registry.note(self.name, registry.get(self.name), seen)

    def note_pushed(self, commits: Iterable[RemoteName]) -> None:
        """Remembers commits that count from now on."""
        registry = _registry(self.session)
        known = registry.get(self.name)
        heads = newest_heads((*known.marks.heads, *(name.head for name in commits)))
        registry.note(self.name, known, known.marks._replace(heads=heads))

    @property
    def _remote_id(self) -> bytes:
        return self.connection.format.remote_id

    def delete(self, history: RemoteHistory, ids: Container[SnapshotId]) -> None:
        """Deletes snapshots of a history, durably; costs a request for each of its commits."""
        for commit in history.commits:
            gone = [item for item in map(snapshot_id, commit.snapshots) if item in ids]
            if gone:
                deletion = DELETION.seal(Deletion(commit.name, tuple(map(bytes.fromhex, gone))))
                self.connection.files.put(Folder.DELETIONS, self.view.state.epoch, deletion)


class Remotes:
    """The remotes of a handle's store, for the handle's root.

    ``secret_of`` is asked for the secret of an encrypted remote; where it has one, a remote at an
    address has to be encrypted unless the call says otherwise. ``jobs`` is how many packs are
    sent or received at the same time; each takes about 70 MB of memory. Nothing is read or
    written until a method is called; no method keeps a connection open. Requests to a bucket are
    repeated for five minutes while its server does not answer, unless ``opener`` does otherwise.
    A remote that shows an older state, or older keys, than the store saw there before is refused;
    with ``accepts_rollback`` what it shows when it is contacted counts from then on. Local
    operations never use a remote.
    """

    def __init__(
        self,
        handle: Handle,
        secret_of: SecretOf = _no_secret,
        opener: Opener | None = None,
        *,
        jobs: int = JOBS,
        accepts_rollback: bool = False,
    ) -> None:
        if jobs < 1:
            raise InvalidArgument(f"There cannot be {jobs} jobs")
        self._context = handle.context
        self._secret_of = secret_of
        self._opener = opener or patient(handle.context.monitor)
        self._jobs = jobs
        self._accepts_rollback = accepts_rollback

    def add(
        self,
        name: str,
        url: str,
        *,
        encrypted: bool | None = None,
        append_only: bool = False,
        only_collector: bool = False,
        exported_keys: str | None = None,
        invitation: Invitation | None = None,
    ) -> RemoteInfo:
        """Adds a remote, and sets it up where there is none; durable after return.

        ``url`` is a directory, or begins with ``s3://``, ``gs://``, ``az://``, ``ssh://`` or
        ``rclone:``. A new remote is encrypted if it is elsewhere or a secret is set for it, or as
        ``encrypted`` says; one that exists is refused if it is not. The server is tried out: where
        it cannot be relied on, no garbage is collected there. The secret comes from ``secret_of``.
        With ``append_only`` this machine replaces nothing there, so that its credentials need not
        allow that. With ``only_collector`` no other machine may collect garbage on a new remote,
        which asks less of its server; on one that was set up so, this machine takes over. With
        ``exported_keys``, a text of :meth:`export_keys`, a remote is opened that lost its key
        slots, and the one that the secret opens is stored there again. With an ``invitation`` this
        machine is the one that an owner invited, and needs no secret. Raises InvalidArgument,
        Refused where the name is taken, ``encrypted`` is not what the remote is, or another rule
        for collections was set up, RemoteFailed, RemoteLocked.
        """
        check_remote_name(name)
        exported = ExportedSlots.from_text(exported_keys) if exported_keys is not None else None
        directory = directory_of(url)
        if directory is not None:
            url = os.path.abspath(directory)
        known = KnownRemote(
            url, bytes(FILE_ID_SIZE), is_encrypted=directory is None, appends_only=append_only
        )
        if invitation is not None and invitation.is_writer:
            raise InvalidArgument("An invitation of a writer is for deliveries alone")
        secret = self._secret_of(known) if invitation is None else invitation.secret
        encrypts = expects_encryption(url, secret, said=encrypted)
        known = known._replace(is_encrypted=encrypts)
        with opened(self._context, "add a remote", create=True, recover=False) as session:
            registry = _registry(session)
            if directory is not None:
                _refuse_inside(session, url)
                if not encrypts:
                    refuse_foreign_remote(url)
            with removed_if_unused(url):
                blobs = self._opener(url, make=True)
                try:
                    format_ = read_format(url, Doubled(blobs))
                    if encrypts and format_ is not None:
                        require_encrypted(url, format_)  # before the probe writes anything there
                    if invitation is not None:
                        require_remote("The invitation is", url, format_, invitation.remote_id)
                    collection, has_ranges = _suited_for(
                        url, blobs, self._opener, format_, only_collector=only_collector
                    )
                except BaseException:
                    blobs.close()
                    raise
                with set_up(
                    url,
                    blobs,
                    secret,
                    collection,
                    registry.machine,
                    encrypts=encrypts,
                    exported_slots=exported,
                ) as connection:
                    format_ = connection.format
                    if encrypted is not None and encrypted != format_.is_encrypted:
                        words = "is encrypted" if format_.is_encrypted else "is not encrypted"
                        raise Refused(
                            f"The remote {quoted(url)} exists and {words}",
                            code=ErrorCode.REMOTE_NAME_TAKEN,
                        )
                    if only_collector and format_.collection is not Collection.ONE:
                        raise Refused(
                            f"The remote {quoted(url)} exists, and was not set up for one "
                            "collector",
                            code=ErrorCode.REMOTE_NAME_TAKEN,
                        )
                    _require_invited(connection, invitation)
                    marks = self._marks_of_added(connection)
                    if exported is not None:
                        connection.mend_slots()
                    if directory is not None and not append_only:
                        RoomKept(blobs).keep()
            known = known._replace(
                remote_id=format_.remote_id,
                is_encrypted=format_.is_encrypted,
                collection=format_.collection,
                may_collect=format_.collection is collection is not Collection.NONE,
                marks=marks,
                reads_whole=not has_ranges,
            )
            if known.is_encrypted:
                registry.machine(known.remote_id).join(invitation)
            registry.add(name, known)
            connection.keep_slot(FileCache(session.fs, session.store.layout, known.remote_id))
        if directory is not None and not known.is_encrypted:
            _warn_of_readers(self._context, directory)
        return _info(name, known)

    def _marks_of_added(self, connection: Connection) -> Marks:
        """Returns what to remember of a remote; one without a state is added to be rebuilt."""
        try:
            return connection.marks(*connection.protocol.read_state())
        except GenerationMissing:
            raise
        except Corrupt as error:
            self._context.monitor.warn(
                WarningCode.REMOTE_FILE_DAMAGED,
                f"The state of {quoted(connection.url)} cannot be read: {error.message}",
            )
            return Marks(generation=connection.generation)

    def list(self) -> tuple[RemoteInfo, ...]:
        """Returns the remotes that the store knows; asks none of them."""
        try:
            with opened(self._context, "list remotes", recover=False) as session:
                registry = _registry(session)
                return tuple(_info(name, registry.get(name)) for name in registry.names())
        except StoreMissing:
            return ()

    def remove(self, name: str) -> None:
        """Forgets a remote, durably; what is stored there stays. Raises NotFound."""
        with opened(self._context, "remove a remote", writing=True, recover=False) as session:
            registry = _registry(session)
            remote_id = registry.get(name).remote_id
            cache = FileCache(session.fs, session.store.layout, remote_id)
            registry.remove(name)
            cache.clear()

    def check(self, name: str | None = None) -> RemoteCheck:
        """Tries out the server of a remote again, as :meth:`add` does, and says what holds there.

        Says also what is there, how fast the place is, and what the credentials may do. Writes
        some small files, one of 1 MiB, and where nothing is known of the server some of 4 MiB;
        removes all of them. Raises NotFound, Refused, RemoteFailed, RemoteLocked.
        """
        from treesnap.remote.blobs.measures import measure

        with self._connected(name, "check a remote", only_reads=True) as remote:
            connection, view, session = remote.connection, remote.view, remote.session
            url, format_ = connection.url, connection.format
            connection.check_format()
            single = connection.single_files()
            chain = connection.files.members.chain()
            deliveries = sum(1 for item, _ in connection.files.inbox() if not item.part)
            slots = len(connection.slots()) if format_.is_encrypted else None
            memory_kib = connection.slot_memory_kib() if format_.is_encrypted else ()
            lacking = _count_lacking(remote)
        blobs = self._opener(url)
        try:
            measures = measure(blobs, session.context.clock_ns)
            report = try_out(blobs, lambda: self._opener(url))
        finally:
            blobs.close()
        tried = report._asdict()
        return RemoteCheck(
            name=remote.name,
            url=url,
            remote_id=format_.remote_id.hex(),
            is_encrypted=format_.is_encrypted,
            key_slots=slots,
            slot_memory_kib=memory_kib,
            collection=format_.collection,
            may_collect=connection.may_collect,
            **measures._asdict(),
            state=view.number,
            collections=view.state.epoch - 1,
            collected_at_ns=view.state.collected_at_ns or None,
            members=chain.machines,
            writers=chain.writers,
            deliveries=deliveries,
            machines=len({head.machine for head in view.counted_heads}),
            unfolded=len(view.commits),
            junk=Counter(name.head.machine.hex() for name in view.damaged),
            single_files=len(frozenset(single) - view.unsigned.keys()),
            unsigned_states=len(view.unsigned),
            lacking=lacking,
            **{**tried, "reasons": (*tried["reasons"], *faults_of(measures), *chain.faults)},
        )

    def policy(self, name: str | None = None, role: Role | None = None) -> RemotePolicy:
        """Returns the rules that a remote's bucket needs for a role, or for each; asks no server.

        Raises NotFound.
        """
        with opened(self._context, "look for a remote", recover=False) as session:
            name, known = _registry(session).find(name)
        roles = list(Role) if role is None else [role]
        policies = role_policies(known.url, roles, appends_only=known.appends_only)
        return RemotePolicy(name, known.url, policies)

    def histories(self, name: str | None = None) -> tuple[HistoryInfo, ...]:
        """Returns the histories on a remote, those with the newest snapshots first."""
        with self._connected(name, "look at a remote", only_reads=True) as remote:
            listed = [item.info() for item in remote.histories()]
        return tuple(sorted(listed, key=lambda item: item.newest_at_ns, reverse=True))

    def push(
        self,
        name: str | None = None,
        refs: Sequence[str] = (),
        *,
        since: str | None = None,
        every_kind: bool = False,
        dry_run: bool = False,
    ) -> PushResult:
        """Stores snapshots of the root on a remote; they are visible there after return.

        Without ``refs`` all that the remote lacks and a person asked for; with ``every_kind`` those
        that no person asked for too, and with ``since`` only what came after that REF. A merge that
        was undone, or is not restored yet, is left out: beside it, the root's other snapshots would
        look as if the root had reverted what the other machine changed. An interrupted push goes on
        when it is called again. No snapshot here changes, and no other machine waits. A dry run
        reads and compresses as much as a push, and stores nothing. Raises NotFound, Busy, Corrupt,
        Refused, RemoteFailed, RemoteLocked.
        """
        with self._connected(name, "push", changes_history=True) as remote:
            session, view = remote.session, remote.view
            pushed = _history_to_push(remote)
            history_id = pushed.history.id.hex()
            chosen = {resolve_in(session, ref).id for ref in refs}
            after = resolve_in(session, since).sequence if since is not None else 0
            pruned_ids = {SnapshotId(item.hex()) for item in pushed.pruned} - chosen
            there = {
                snapshot_id(payload)
                for entry in view.visible.values()
                if entry.history.id == pushed.history.id
                for payload in entry.snapshots
            }
            payloads = _lacking(session, there | pruned_ids, chosen, after, every_kind=every_kind)
            if there and len(payloads) < max(1, len(chosen)):
                # What was deleted there is visible until a collection. It costs a request to
                # know, so a push that has something to store leaves it to the next one.
                mine = (item for item in remote.histories() if item.id == history_id)
                left = {key for history in mine for key in history.records}
                payloads = _lacking(
                    session, left | pruned_ids, chosen, after, every_kind=every_kind
                )
            ids = tuple(map(snapshot_id, payloads))
            if not payloads:
                # All that the caller learns is that the remote is whole: so more of it is read.
                remote.connection.check_format()
                _warn_of_copies(session.context, remote.connection)
                requests = 0 if dry_run else None
                return PushResult(remote.name, history_id, ids, Uploaded(), requests)
            source = LocalObjects(session.store)
            if dry_run:
                with _while_they_exist(session, ids):
                    planned = plan_push(view, source, payloads)
                stored = Uploaded(planned.objects, planned.packs, planned.size_bytes)
                return PushResult(remote.name, history_id, ids, stored, planned.requests)
            # Known before anything is stored there, so that this history is never begun twice.
            remote.set_own_history(pushed)
            session.monitor.begin(Phase.PUSH, None, None)
            with _while_they_exist(session, ids):
                session.monitor.begin(Phase.PUSH, count_missing(view, source, payloads), None)
                stored = push_snapshots(
                    remote.connection.protocol,
                    pushed.history,
                    source,
                    payloads,
                    view=view,
                    jobs=self._jobs,
                    advance=session.monitor.advance,
                )
            # A commit may be invisible for the moment, and one that was forgotten is a copy's.
            commits = pushed.commits[-_COMMITS_KNOWN_MAX:]
            commits += tuple(name.key for name in stored.commits)
            pruned = tuple(item for item in pushed.pruned if item.hex() not in ids)
            pushed = pushed._replace(commits=commits, pruned=pruned)
            remote.set_own_history(pushed)
            remote.note_pushed(stored.commits)
            remote.fold_now_and_then(stored.commits[-1])
            return PushResult(remote.name, history_id, ids, stored)

    def prune(
        self, name: str | None = None, policy: Policy | None = None, *, dry_run: bool = False
    ) -> RemotePruneResult:
        """Removes the snapshots of the root's history on a remote that no rule keeps.

        Without a policy that of the settings holds, which thins out automatic snapshots. Pinned
        and named snapshots stay, and the newest one of the whole root. Nothing local is removed,
        and a later push stores a removed snapshot again only if it is named. :meth:`collect` then
        frees the space. Raises InvalidArgument where the settings cannot be read, NotFound where
        the root has no history there, Busy, Refused, RemoteFailed, RemoteLocked.
        """
        with self._connected(
            name, "prune a remote", changes_history=True, frees_space=True
        ) as remote:
            session, log = remote.session, remote.session.store.snapshots
            rules, shown = rules_of(policy, settings_of(session))
            pushed = remote.own_history()
            if pushed is None:
                raise NotFound(
                    f"This root has no history on the remote {quoted(remote.name)}",
                    code=ErrorCode.HISTORY_NOT_FOUND,
                )
            own_id = pushed.history.id.hex()
            mine = next((each for each in remote.histories() if each.id == own_id), None)
            snapshots = mine.snapshots(log) if mine is not None else ()
            decisions = _decisions(session, snapshots, rules)
            gone = {item.snapshot.id for item in decisions if not item.is_kept}
            result = RemotePruneResult(
                remote.name,
                tuple(item.snapshot for item in decisions if not item.is_kept),
                tuple(item.snapshot for item in decisions if item.is_kept),
                {item.snapshot.id: item.reasons for item in decisions if item.is_kept},
                dry_run,
                shown,
            )
            if dry_run or mine is None or not gone:
                return result
            local = {item.id for item in log.names(session.root.id)}
            pruned = [*pushed.pruned, *(bytes.fromhex(item) for item in sorted(gone))]
            pushed = pushed._replace(
                pruned=tuple(item for item in dict.fromkeys(pruned) if item.hex() in local)
            )
            remote.connection.files.members.signer(MemberRole.COLLECTOR)
            remote.set_own_history(pushed)
            remote.delete(mine, gone)
            return result

    def delete(self, name: str | None, history: str) -> HistoryInfo:
        """Deletes a history on a remote, with all snapshots; returns what it was.

        For machines that are gone: a machine that still pushes would store them again. Nothing
        local is removed. :meth:`collect` then frees the space. Raises NotFound, InvalidArgument,
        Refused, RemoteFailed, RemoteLocked.
        """
        with self._connected(name, "delete a history on a remote", frees_space=True) as remote:
            chosen = choose(remote.histories(), history)
            remote.connection.files.members.signer(MemberRole.COLLECTOR)
            remote.delete(chosen, chosen.records)
            return chosen.info()

    def verify(
        self, name: str | None = None, *, read_data: bool = False, repair: bool = False
    ) -> VerifyResult:
        """Checks that everything is there that the snapshots on a remote need.

        With ``read_data`` reads all of that, and compares it with its hashes. ``repair`` stores
        what is lost or damaged there again, as far as this store has it, and where packs are
        missing collects garbage, if this machine may; durable after return. Without it nothing is
        changed. Raises Busy, RemoteFailed.
        """
        with self._connected(
            name, "verify a remote", reads_all=True, only_reads=not repair
        ) as remote:
            protocol, session = remote.connection.protocol, remote.session
            session.monitor.begin(Phase.VERIFY, None, None)
            source = LocalObjects(session.store) if repair else None
            advance, verified = session.monitor.advance, VerifiedObjects()

            def verification_of(view: View) -> tuple[Verification, VerifyResult]:
                looked = Verification(protocol, view, advance, source, verified)
                return looked, looked.run(read_data=read_data)

            verification, result = protocol.settled(
                "the verification", remote.view, verification_of
            )
            if source is None:
                return result
            collect = remote.collect if remote.connection.may_collect else None
            return repaired(verification, result, source, collect)

    def repair(self, name: str | None = None, *, rebuild: bool = False) -> RemoteRepairResult:
        """Makes a remote whole: small files from their copies, damaged commits from their packs.

        With ``rebuild`` index, catalog and state are written anew, of what the packs say, and the
        list of the machines where it cannot be read; the state limits none of them any more. That
        takes the remote as it is now: other machines that remember more refuse it, unless they
        accept that as well. Durable after return. :meth:`verify` finds lost contents, and stores
        them again. Raises Busy, Refused, RemoteFailed, RemoteLocked.
        """
        with opened(self._context, "look for a remote", recover=False) as session:
            marks = _registry(session).find(name)[1].marks
        taken = self._accepting() if rebuild else self
        rebuilt_files: tuple[str, ...] = ()

        def prepare(connection: Connection) -> None:
            nonlocal rebuilt_files
            if rebuild:
                rebuilt_files = connection.rebuild(marks)

        with (
            taken._connected(  # noqa: SLF001 - another of its own kind
                name, "repair a remote", reads_all=True, only_reads=True, prepare=prepare
            ) as remote,
            _alone(remote, "remote repair"),
        ):
            protocol = remote.connection.protocol
            protocol.read_deletions(skips_damaged=True)  # so that a damaged one is known
            files = (*rebuilt_files, *remote.connection.mend())
            removed = remote.connection.remove_unsigned(remote.view)
            recovered = tuple(sorted(map(str, remote.view.recovered)))
            if rebuild:
                rebuilt = Collector(protocol).rebuild(marks)
                remote.note(*protocol.read_state())
                return RemoteRepairResult(files, recovered, removed, rebuilt)
            folded: tuple[str, ...] = ()
            if recovered and remote.connection.may_collect and Collector(protocol).fold():
                folded = recovered
                remote.note(*protocol.read_state())
            return RemoteRepairResult(files, folded, removed)

    def _accepting(self) -> Remotes:
        """Returns the same remotes, which are taken as they are now."""
        taken = copy(self)
        taken._accepts_rollback = True  # noqa: SLF001 - another of its own kind
        return taken

    def keys(self, name: str | None = None) -> tuple[KeyInfo, ...]:
        """Returns the key slots of an encrypted remote. Raises Refused for another one."""
        with self._connected(name, "look at the keys of a remote") as remote:
            return tuple(remote.connection.slots())

    def add_key(self, name: str | None, secret: SecretSource) -> KeyInfo:
        """Lets another secret open an encrypted remote; durable after return. Raises Refused."""
        with self._connected(name, "add a key to a remote") as remote:
            return remote.connection.add_slot(secret)

    def export_keys(self, name: str | None = None) -> str:
        """Returns the key slots of an encrypted remote as a text, for :meth:`add`.

        It is of use with the secret of a slot alone, and can be kept anywhere. Raises Refused.
        """
        with self._connected(name, "export the keys of a remote", only_reads=True) as remote:
            return remote.connection.exported_slots()

    def remove_key(self, name: str | None, beginning: str) -> KeyInfo:
        """Removes the key slot whose id begins so; its secret opens the remote no longer.

        A person who kept the secret and a copy of the slot can still read the remote. Raises
        NotFound, InvalidArgument, and Refused for the slot in use.
        """
        with self._connected(name, "remove a key of a remote") as remote:
            return remote.connection.remove_slot(beginning)

    def rotate_keys(self, name: str | None = None) -> KeyInfo:
        """Encrypts what is stored on a remote from now on with new keys; durable after return.

        A copy of an older key slot does not open that, even with its secret. The secret in use
        opens everything, as before; other secrets open what was stored before, until they are
        added anew. Nothing is written again. Raises Busy where another machine rotates them
        meanwhile, and Refused.
        """
        with (
            self._connected(name, "rotate the keys of a remote") as remote,
            _alone(remote, "remote key rotate"),
        ):
            rotated = remote.connection.rotate()
            _warn_of_ended_invitations(remote)
            remote.note(remote.view.number, remote.view.state, rotated.generation)
            return rotated

    def change_secret(
        self, name: str | None, secret: SecretSource
    ) -> tuple[KeyInfo, tuple[str, ...]]:
        """Lets a new secret alone open an encrypted remote from now on; durable after return.

        What is stored from then on has new keys, which no copy of an older slot opens. Returns the
        new slot and the ids of those that were removed: each of their secrets has to be added
        again, by :meth:`add_key`, if it is to open the remote. Raises Refused for a secret that
        opens the remote already, and what :meth:`rotate_keys` does.
        """
        with (
            self._connected(name, "change the secret of a remote") as remote,
            _alone(remote, "remote key change"),
        ):
            connection = remote.connection
            info, removed = connection.change(connection.new_secret(secret))
            _warn_of_ended_invitations(remote)
            remote.note(remote.view.number, remote.view.state, info.generation)
            return info, removed

    def invite(self, name: str | None, role: MemberRole) -> Invitation:
        """Invites a machine to an encrypted remote, durably; returns what it is given: a secret.

        A writer delivers snapshots and can do nothing else there; others have :meth:`add` called
        with the invitation. An owner is not invited: it has a secret. Raises InvalidArgument,
        Refused and Busy.
        """
        if role is MemberRole.OWNER:
            raise InvalidArgument("An owner opens the remote with a secret, and is not invited")
        with self._connected(name, "invite a machine to a remote") as remote:
            invited = remote.connection.invite(role)
            remote.note(remote.view.number, remote.view.state)
            return invited

    def members(self, name: str | None = None) -> tuple[MemberInfo, ...]:
        """Returns the machines on the list of a remote, with their roles. Raises Refused."""
        with self._connected(
            name, "look at the members of a remote", only_reads=True, newest_keys=True
        ) as remote:
            return _members(remote)

    def demote(self, name: str | None, machine: str) -> MemberInfo:
        """Makes a collector that was invited a member, durably; returns what it is then.

        ``machine`` is the beginning of its id, or the name of its computer or a history. A role
        never rises: what the machine signed before, and did not count, would count then. Raises
        InvalidArgument, NotFound, Refused, Busy.
        """
        with (
            self._connected(name, "change a role on a remote") as remote,
            _alone(remote, "remote members"),
        ):
            remote.connection.require_owner()
            member = _member(remote, machine)
            if member.role != MemberRole.COLLECTOR.words:
                raise Refused(
                    f"The machine {member.id} is not a collector: it is a {member.role}",
                    code=ErrorCode.REMOTE_ROLE,
                )
            _require_collections(remote)
            identity, connection = bytes.fromhex(member.id), remote.connection
            collector = Collector(connection.protocol)
            collector.limit(identity, MemberRole.MEMBER)
            connection.demote(identity)
            collector.renew_state()
            remote.note(*connection.protocol.read_state())
            return member._replace(role=MemberRole.MEMBER.words)

    def revoke(self, name: str | None, machine: str, secret: SecretSource | None = None) -> Revoked:
        """Takes a machine off the list of a remote, durably: what it pushes later counts for
        nothing, and what it pushed before stays.

        ``machine`` is the beginning of its id, or the name of its computer or a history. If it
        could read, keys are made anew, so that it reads nothing that is stored later. What was
        stored before it can read as long as its credentials of the place are good. An owner knows
        a secret: then ``secret`` is the one that alone opens the remote from now on. It is asked
        for before anything changes, and refused where it is set for a machine that is not an owner.
        Raises InvalidArgument, NotFound, Refused, Busy.
        """
        with (
            self._connected(
                name, "revoke a machine", newest_keys=True, may_contradict=True
            ) as remote,
            _alone(remote, "remote members"),
        ):
            connection = remote.connection
            connection.require_owner()
            member = _member(remote, machine)
            identity = bytes.fromhex(member.id)
            if member.is_own:
                raise Refused("This machine does not revoke itself", code=ErrorCode.REMOTE_ROLE)
            is_owner = member.role == MemberRole.OWNER.words
            is_set = secret is not None and not isinstance(secret, PossibleSecret)
            if is_set and not is_owner:
                raise InvalidArgument(
                    f"The machine {member.id} is a {member.role}, which knows no secret: only to "
                    "revoke an owner takes another one"
                )
            self._require_consistent(connection, remote.view, revoked=identity)
            if member.role == MemberRole.WRITER.words:
                connection.remove_writer(identity)
                remote.note(remote.view.number, remote.view.state)
                return Revoked(member, None, ())
            if is_owner and secret is None:
                raise Refused(
                    f"The machine {member.id} is an owner, so another secret is needed",
                    code=ErrorCode.SECRET_IN_USE,
                )
            _require_collections(remote)
            # Before the limit, which nothing lifts: without a secret the machine stays what it is.
            new = connection.new_secret(secret) if is_owner and secret is not None else None
            collector = Collector(connection.protocol, remote.session.context.clock_ns)
            collector.limit(identity, MemberRole.WRITER)
            collector.fold_all()
            info, removed = connection.revoke(identity, new)
            _warn_of_ended_invitations(remote)
            collector.renew_state()
            number, state = connection.protocol.read_state()
            remote.note(number, state, info.generation)
            return Revoked(member, info.generation, removed)

    def deliver(
        self,
        url: str,
        invitation: Invitation,
        refs: Sequence[str] = (),
        *,
        every_kind: bool = False,
        whole: bool = False,
        append_only: bool = False,
    ) -> Delivered:
        """Writes snapshots of the root to the inbox of a remote, as an invited writer; durable.

        Reads nothing there. They count once a machine with the keys has received them. Without
        ``refs`` all that was not delivered before and a person asked for, with ``every_kind``
        others too. What was delivered is not sent again, unless ``whole``. With ``append_only``
        it replaces nothing there, so that its credentials need not allow that. Raises NotFound,
        Busy, Corrupt, Refused, RemoteFailed.
        """
        if not invitation.is_writer:
            raise InvalidArgument("Only an invitation of a writer is for deliveries")
        directory = directory_of(url)
        url = url if directory is None else os.path.abspath(directory)
        remote_id = invitation.remote_id
        with opened(self._context, "deliver", recover=False) as session, _history_lock(session):
            before = delivered_history(session.root, remote_id)
            chosen = {resolve_in(session, ref).id for ref in refs}
            delivered = set() if whole else {SnapshotId(item.hex()) for item in before.snapshots}
            payloads = _lacking(session, delivered, chosen, 0, every_kind=every_kind)
            ids = tuple(map(snapshot_id, payloads))
            sealer = InboxSealer(invitation)
            begins = beginning_of(sealer.writer_id, before.history).hex()
            if not payloads:
                return Delivered(sealer.writer_id.hex(), begins, ids, Uploaded())
            set_delivered_history(session.root, remote_id, before)
            parents = {decode_snapshot(item).parent for item in payloads} & delivered
            here = {item.id: item for item in session.store.snapshots.names(session.root.id)}
            delivery = Delivery(before.history, _name_of(session.root), tuple(payloads), ())
            session.monitor.begin(Phase.PUSH, None, None)
            blobs = self._opener(url)
            if append_only:
                blobs = CreateOnly(blobs)
            try:
                with _while_they_exist(session, ids):
                    stored = send(
                        blobs,
                        sealer,
                        LocalObjects(session.store),
                        delivery,
                        len(before.snapshots),
                        [
                            session.store.snapshots.payload(session.root.id, here[item])
                            for item in parents
                            if item in here
                        ],
                        session.monitor.advance,
                    )
            finally:
                blobs.close()
            done = dict.fromkeys((*before.snapshots, *map(bytes.fromhex, ids)))
            set_delivered_history(session.root, remote_id, before._replace(snapshots=tuple(done)))
            return Delivered(sealer.writer_id.hex(), begins, ids, stored)

    def receive(self, name: str | None = None) -> ReceiveResult:
        """Stores what writers delivered as histories of a remote, and empties its inbox; takes a
        collector.

        Each root of a writer gets a history of its own, whose name says which writer. Objects are
        compared with their ids. What is not whole, or of no writer, stays in the inbox and is named
        in the result. Visible when it returns. Raises Busy, Refused, RemoteFailed, RemoteLocked.
        """
        with self._connected(name, "receive deliveries") as remote:
            connection, view = remote.connection, remote.view
            connection.files.members.signer(MemberRole.COLLECTOR)
            _become_another_if_copied(remote)
            inbox, received, left = Inbox(connection.files), list[Received](), dict[str, str]()
            remote.note(view.number, view.state)  # an older list may have writers that were removed
            for letter in inbox.letters():
                try:
                    delivery = inbox.read(letter)
                    own_id = connection.files.members.own_id
                    lacked = lacking(letter, delivery, own_id, view.visible.values())
                    if lacked.snapshots:
                        others = RemoteObjects(connection.files, view)
                        with Spool(remote.session.store.layout.temporary) as spool:
                            stored = push_snapshots(
                                connection.protocol,
                                lacked.history,
                                inbox.objects(delivery, others, spool),
                                lacked.snapshots,
                                view=view,
                                jobs=self._jobs,
                            )
                        remote.note_pushed(stored.commits)
                        view = connection.protocol.read(skips_damaged=True)
                        view.require_whole()
                except GenerationMissing:
                    raise
                except (Corrupt, Missing) as error:
                    left[str(letter)] = message_of(error)
                    continue
                inbox.remove(letter, delivery)
                received.append(
                    Received(
                        letter.writer.hex(),
                        lacked.history.id.hex(),
                        lacked.history.name,
                        tuple(map(snapshot_id, lacked.snapshots)),
                    )
                )
            return ReceiveResult(remote.name, tuple(received), left, inbox.left - len(left))

    def collect(self, name: str | None = None) -> Collected:
        """Frees the space of everything on a remote that no snapshot needs.

        Machines that push meanwhile are not kept waiting. Raises Refused where the server cannot
        be relied on for that, Busy when another collection went on meanwhile.
        """
        with self._connected(name, "collect garbage on a remote", frees_space=True) as remote:
            connection, known_as = remote.connection, quoted(remote.name)
            connection.files.members.look()
            connection.files.members.signer(MemberRole.COLLECTOR)
            if not connection.may_collect:
                raise Refused(
                    f"Another machine alone collects garbage on the remote {known_as}"
                    if connection.format.collection is Collection.ONE
                    else f"The server of the remote {known_as} cannot be relied on for collections",
                    code=ErrorCode.REMOTE_UNRELIABLE,
                )
            collected = remote.collect()
            if collected is None:
                raise Busy(f"Another machine collected garbage on the remote {known_as} meanwhile")
            return collected

    def snapshots(
        self, name: str | None = None, history: str | None = None
    ) -> tuple[Snapshot, ...]:
        """Returns the snapshots of a history on a remote, newest first; fetches none of them.

        ``history`` is a name or the beginning of an id; without it, it is the root's own history,
        or the only one. Raises NotFound.
        """
        with self._connected(name, "look at a remote", only_reads=True) as remote:
            own = remote.own_history()
            if history is None and own is not None:
                history = own.history.id.hex()
            return choose(remote.histories(), history).snapshots(remote.session.store.snapshots)

    def fetch(
        self,
        name: str | None = None,
        history: str | None = None,
        ref: str | None = None,
        paths: Iterable[PathLike] = (),
    ) -> FetchResult:
        """Brings snapshots of a history on a remote into the store; durable after return.

        They are looked at and restored as ``REMOTE/HISTORY@REF`` from then on, without the remote.
        Without ``ref`` all of the history comes, the newest snapshot first; one that needs
        something damaged is left out, and is a warning. With ``ref`` that snapshot comes alone;
        with ``paths``, which are relative to the root, a snapshot of these paths. Nothing else is
        read, and the root is left alone. ``history`` is a name, the beginning of an id, or one of
        these with ``@REF``; without it, it is the only history that is not the root's own. An
        interrupted fetch goes on when it is called again. Raises NotFound, InvalidArgument, Busy,
        Corrupt, Refused, RemoteFailed, RemoteLocked, StorageFull.
        """
        return self._fetch(name, history, ref, paths)

    def _fetch(
        self,
        name: str | None,
        history: str | None,
        ref: str | None = None,
        paths: Iterable[PathLike] = (),
        *,
        from_others: bool = False,
    ) -> FetchResult:
        """Fetches; with ``from_others`` raises NotFound where only the root's own history is."""
        tree_paths = _tree_paths(self._context, paths)
        with self._connected(name, "fetch", only_reads=True) as remote:
            return remote.connection.protocol.settled(
                "the fetch",
                remote.view,
                lambda view: self._fetched(
                    remote._replace(view=view), history, ref, tree_paths, from_others=from_others
                ),
            )

    def _fetched(
        self,
        remote: _RemoteSession,
        history: str | None,
        ref: str | None,
        paths: tuple[bytes, ...],
        *,
        from_others: bool,
    ) -> FetchResult:
        """Fetches what a view shows; raises Missing when that is not there any more."""
        session, histories, own = remote.session, remote.histories(), remote.own_history()
        own_id = own.history.id.hex() if own is not None else None
        others = [item for item in histories if item.id != own_id]
        if from_others and history is None and histories and not others:
            raise NotFound(
                f"The remote {quoted(remote.name)} has no history but the root's own",
                code=ErrorCode.HISTORY_NOT_FOUND,
            )
        candidates = (others or histories) if history is None else histories
        chosen, ref = choose_with_ref(candidates, history, ref)
        goal = _find(remote.name, chosen, ref)
        root = fetched_root(session.store, remote.name, chosen.name, chosen.id)
        root.register()
        with root.locked("fetch", session.context.wait_s):
            fetched = fetch(
                session._replace(root=root),
                remote.connection.protocol,
                remote.view,
                Wanted(
                    chosen.payloads,
                    goal,
                    with_others=ref is None,
                    others_follow=ref is None and not paths,
                    paths=paths,
                ),
                self._jobs,
            )
        _warn_of_left_out(session.context, remote.name, fetched.left_out)
        unread = _maybe_newer(remote.view, chosen) if ref is None else ()
        return FetchResult(remote.name, chosen.id, chosen.name, fetched.asked_id, fetched, unread)

    def pull(
        self,
        name: str | None = None,
        history: str | None = None,
        *,
        overwrite: bool = False,
        privileged: bool = False,
    ) -> PullResult:
        """Brings what another machine changed into the root, beside what changed here.

        Fetches the history of that machine, captures the root, merges both since the snapshots
        that they had in common, and restores the merge, which is a snapshot of the root. What only
        one side changed is taken from it. What both changed is a conflict: it stays as it is here,
        or with ``overwrite`` becomes what it is there. An undo takes the pull back. Set-user-ID
        bits and the like are left out, as by a restore, unless it is ``privileged``. Raises Refused
        where the histories have nothing in common, and what :meth:`fetch` and a restore raise.
        """
        done = self._fetch(name, history, from_others=True)
        with opened(self._context, "pull") as session:  # a pull that was killed may come first
            refuse_covered(session)
            if done.newest_id in {base.id for base in _merge_bases(session, done)}:
                return PullResult(done, (), None)
        label = f"before the pull of {done.remote}/{done.history_name}"
        mine = create(self._context, CaptureRequest(label=label, skip_unchanged=True)).snapshot
        with (
            opened(self._context, "pull", writing=True, recover=False) as session,
            locked_root(session, "pull"),
        ):
            theirs, bases = resolve_in(session, done.ref), _merge_bases(session, done)
            asked = MergeRequest(
                label=f"pulled {done.remote}/{done.history_name}",
                rule=ConflictRule.THEIRS if overwrite else ConflictRule.MINE,
                takes_owners=os.geteuid() == 0,
                tags={MERGED: theirs.id},
                keeps_record=True,
            )
            merged = merge(session, mine, theirs, bases, asked)
        assert merged.snapshot is not None
        request = RestoreRequest(
            ref=merged.snapshot.id,
            bases=(mine.id,),
            privileged=privileged,
            spared=frozenset(snapshot.id for snapshot in (theirs, *bases)),
        )
        restored = restore(self._context, request)
        return PullResult(done, merged.conflicts, restored, merged.left_out)

    def clone(
        self,
        place: str,
        history: str | None = None,
        ref: str | None = None,
        paths: Iterable[PathLike] = (),
        *,
        lazy: bool = False,
        privileged: bool = False,
        encrypted: bool | None = None,
    ) -> CloneResult:
        """Makes the root of a history on a remote: its newest snapshot, and all before it.

        The root must be an empty directory, or not exist. ``place`` is the name of a remote that
        the store knows, or an address. ``history`` is a name or the beginning of an id, or one of
        these with ``@REF``; it may be left out where the remote has only one. ``ref`` names one of
        its snapshots. The snapshots keep their ids. With ``lazy`` the snapshot that the root
        equals comes alone, and :meth:`fetch` brings others when they are needed. With ``paths``,
        which are relative to the root, nothing else is read, and there is one snapshot of these
        paths. Set-user-ID bits, devices, privileged attributes and owners are left out unless it is
        ``privileged``. At the address of a bucket, or where a secret is set for it, the remote has
        to be encrypted, unless ``encrypted`` says otherwise. The directory is made once that
        snapshot is fetched, before the others are; one of these that needs something damaged is
        left out, and is a warning. A clone that was killed goes on when it is called again, and
        leaves alone what others put there meanwhile. Raises NotFound, InvalidArgument, Refused,
        Busy, Corrupt, RemoteFailed, RemoteLocked, StorageFull.
        """
        context = self._context
        tree_paths = _tree_paths(context, paths)
        refuse_dangerous(context.root, context.store_path)
        recovery = recover(context)
        earlier = recovery.completed if recovery is not None else None
        is_whole = not lazy and not tree_paths
        goes_on = earlier is None and is_whole and _is_cloned(context)
        if earlier is None and not goes_on:
            _require_empty(context.root)
        name, known, secret = self._known(place)
        if name is None:
            encrypts = expects_encryption(known.url, secret, said=encrypted)
            known = known._replace(is_encrypted=encrypts)
        with connect(known, secret, self._opener) as connection:
            view = connection.protocol.read(skips_damaged=True)
            self._require_consistent(connection, view)
            _warn_of_damage(context, connection, view)

            def brought(view: View, *, with_others: bool) -> _Cloned:
                histories = _histories(context, connection, view)
                chosen, inner_ref = choose_with_ref(histories, history, ref)
                with opened(context, "clone", create=True, recover=False) as session:
                    if name is not None:
                        self._note(session, name, known, connection, view)
                    goal = _find(name, chosen, inner_ref)
                    if goes_on:
                        goal = _newest_here(session, chosen)
                    session.root.register()
                    with locked_root(session, "clone"):
                        if not tree_paths and not goes_on:
                            _require_only(session, chosen.records)
                        fetched = fetch(
                            session,
                            connection.protocol,
                            view,
                            Wanted(
                                chosen.payloads,
                                goal,
                                with_others,
                                others_follow=is_whole,
                                paths=tree_paths,
                            ),
                            self._jobs,
                        )
                    if tree_paths:
                        _require_only(session, [fetched.asked_id])
                return _Cloned(
                    chosen, fetched, _maybe_newer(view, chosen) if inner_ref is None else ()
                )

            settled = connection.protocol.settled
            first = settled("the clone", view, partial(brought, with_others=False))
            restored = None
            if not goes_on:
                restored = restore(
                    context,
                    RestoreRequest(
                        ref=first.fetched.asked_id,
                        list_changes=False,
                        privileged=privileged,
                        bases=() if earlier is None else (earlier,),
                        # What appeared during the fetch is in no snapshot; what appears later, no
                        # plan has.
                        approve=(
                            None if earlier is not None else lambda _: _require_empty(context.root)
                        ),
                    ),
                )
            fetched = first.fetched
            if is_whole and len(first.history.records) > 1:
                rest = settled("the clone", view, partial(brought, with_others=True)).fetched
                fetched = rest._replace(
                    asked_id=fetched.asked_id,
                    snapshots=fetched.snapshots + rest.snapshots,
                    objects=fetched.objects + rest.objects,
                    size_bytes=fetched.size_bytes + rest.size_bytes,
                )
        _warn_of_left_out(context, name or known.url, fetched.left_out)
        return CloneResult(
            context.root,
            first.history.id,
            fetched.asked_id,
            fetched,
            restored.privileges if restored is not None else Privileges(),
            tuple(item.path for item in restored.conflicts) if restored is not None else (),
            first.unreadable,
        )

    def _contacted(self, session: Session, name: str | None) -> tuple[str, KnownRemote]:
        """Returns what :func:`_contacted` does, and forgets its marks if the caller says so."""
        name, known = _contacted(session, name)
        if self._accepts_rollback:
            _registry(session).forget_marks(name)
            known = known._replace(marks=Marks())
        return name, known

    def _note(
        self, session: Session, name: str, known: KnownRemote, connection: Connection, view: View
    ) -> None:
        """Remembers what a view shows; raises Refused for less than what was seen before."""
        if view.has_state:
            is_current = connection.format.collection is not Collection.NONE  # else it lists late
            hides = view.hides if is_current else lambda _: False
            if self._accepts_rollback:
                _registry(session).machine(known.remote_id).unsettle()
            seen = connection.marks_of(view, accepts=self._accepts_rollback)
            _registry(session).note(name, known, seen, hides)

    def _require_consistent(
        self, connection: Connection, view: View, revoked: bytes | None = None
    ) -> None:
        """Raises Refused where what a view shows had seen what it does not show.

        It does not matter what a machine says that is about to be revoked.
        """
        is_current = connection.format.collection is not Collection.NONE
        said = (words for machine, words in view.contradictions.items() if machine != revoked)
        if is_current and not self._accepts_rollback and (words := next(said, "")):
            raise set_back(connection.url, words)

    def _secret(self, session: Session, known: KnownRemote) -> SecretSource:
        """Returns what gives the secret of a remote: the key of this machine, if it was invited."""
        secret = _registry(session).machine(known.remote_id).secret()
        return self._secret_of(known) if secret is None else lambda: secret

    def _known(self, place: str) -> tuple[str | None, KnownRemote, SecretSource]:
        """Returns a remote with its name in the store, or, without one, by its address; and what
        gives its secret.

        Raises NotFound for what is neither, and RemoteNotNamed.
        """
        names: list[str] = []
        try:
            with opened(self._context, "look for a remote", recover=False) as session:
                names = _registry(session).names()
                if place in names:
                    name, known = self._contacted(session, place)
                    return name, known, self._secret(session, known)
        except StoreMissing:
            pass
        known = _by_address(place, names)
        return None, known, self._secret_of(known)

    @contextmanager
    def _connected(
        self,
        name: str | None,
        doing: str,
        *,
        reads_all: bool = False,
        only_reads: bool = False,
        changes_history: bool = False,
        frees_space: bool = False,
        newest_keys: bool = False,
        may_contradict: bool = False,
        prepare: Callable[[Connection], None] | None = None,
    ) -> Iterator[_RemoteSession]:
        """Opens the store and a remote, and reads what is visible there.

        A command that ``only_reads`` goes on without a state, index or catalog that is damaged,
        which is a warning; any other one raises Corrupt. With ``reads_all`` nothing is taken from
        what was kept of the remote. What is remembered of the root's history there changes in one
        process at a time. A command that ``frees_space`` uses the room that is kept for it, and one
        with ``newest_keys`` opens no slot that may be left of a rotation. With
        ``may_contradict`` the caller looks itself whether machines saw what is not shown. What
        ``prepare`` does comes before all that is read. A damaged commit is a warning.
        """
        with opened(self._context, doing, recover=False) as session:
            registry = _registry(session)
            name, known = self._contacted(session, name)
            directory = directory_of(known.url)
            if changes_history and directory is not None and not known.is_encrypted:
                refuse_foreign_remote(directory)
            cache = FileCache(session.fs, session.store.layout, known.remote_id)
            if self._accepts_rollback and prepare is None:
                cache.forget()
            with (
                _history_lock(session) if changes_history else nullcontext(),
                connect(
                    known,
                    self._secret(session, known),
                    keeping_reserve(self._opener) if frees_space else self._opener,
                    cache,
                    registry.machine,
                    newest_keys=newest_keys,
                ) as connection,
            ):
                if prepare is not None:  # with all that was kept
                    prepare(connection)
                    if self._accepts_rollback:
                        cache.forget()
                if reads_all:
                    connection.files.read_anew()
                view = connection.protocol.read(skips_damaged=True)
                if not only_reads:
                    view.require_whole()
                _warn_of_damage(session.context, connection, view)
                if not may_contradict:
                    self._require_consistent(connection, view)
                self._note(session, name, known, connection, view)
                yield _RemoteSession(session, name, connection, view)


def _require_invited(connection: Connection, invitation: Invitation | None) -> None:
    """Raises Refused where the list of a remote lacks what an invitation is for."""
    members = connection.files.members
    if invitation is not None:
        members.look()
        if members.role_of(invitation.machine_id) is None:
            raise not_allowed("an owner revoked what it was invited as")


def _members(remote: _RemoteSession) -> tuple[MemberInfo, ...]:
    """Returns the machines on the list, the ones that may do most first."""
    listed = remote.connection.members()
    own_id = remote.connection.files.own_id
    names: dict[bytes, set[str]] = {identity: set() for identity in listed}
    for entry in remote.view.visible.values():
        for identity in listed:
            if entry.history.is_of(identity) and entry.snapshots:
                names[identity].add(entry.history.name)
    order = sorted(listed.items(), key=lambda item: (-item[1].role, item[0]))
    return tuple(
        MemberInfo(
            identity.hex(),
            MemberRole(item.role).words,
            tuple(sorted(names[identity])),
            identity == own_id,
        )
        for identity, item in order
    )


def _member(remote: _RemoteSession, words: str) -> MemberInfo:
    """Returns the machine whose id begins so, or that has a history, or a name, of these words.

    Raises NotFound and InvalidArgument.
    """
    listed = _members(remote)
    fitting = [
        item
        for item in listed
        if words
        and (
            item.id.startswith(words)
            or any(words in (name, name.rpartition("@")[2]) for name in item.histories)
        )
    ]
    if not fitting:
        raise NotFound(
            f"No machine of the remote {quoted(remote.name)} has the id or the name "
            f"{quoted(words)}",
            code=ErrorCode.MEMBER_NOT_FOUND,
        )
    if len(fitting) > 1:
        ids = ", ".join(item.id for item in fitting)
        raise InvalidArgument(
            f"Several machines are called {quoted(words)}; name one by its id: {ids}"
        )
    return fitting[0]


def _require_collections(remote: _RemoteSession) -> None:
    """Raises Refused where this machine may not create a state."""
    if not remote.connection.may_collect:
        raise Refused(
            f"The remote {quoted(remote.name)} lets this machine collect no garbage, which is what "
            "it takes to say what a machine pushed before",
            code=ErrorCode.REMOTE_UNRELIABLE,
        )


def _registry(session: Session) -> Registry:
    return Registry(session.fs, session.store.layout)


def _contacted(session: Session, name: str | None) -> tuple[str, KnownRemote]:
    """Returns a remote that is about to be contacted, with its name.

    Its server gets the user's credentials, and what is pushed. So raises RemoteNotNamed where it
    may be a stranger who says which one it is; raises what :meth:`Registry.find` does as well.
    """
    name, known = _registry(session).find(name)
    if not session.store.is_own and not is_safe_remote(known.url):
        raise RemoteNotNamed(
            f"The remote {quoted(name)} is in a store that is not proven to be yours, and would "
            f"lead to {quoted(known.url)}",
            path=session.store.path,
        )
    return name, known


def _histories(context: Context, connection: Connection, view: View) -> list[RemoteHistory]:
    deletions = connection.protocol.read_deletions(skips_damaged=True)
    _warn_of_deletions(context, deletions.damaged)
    return by_history(without_deleted(view, deletions))


def _warn_of_deletions(context: Context, damaged: Mapping[RemoteName, Corrupt]) -> None:
    for name, error in sorted(damaged.items(), key=lambda item: item[0]):
        context.monitor.warn(
            WarningCode.REMOTE_FILE_DAMAGED,
            f"What was deleted by {name} cannot be read, and is shown as before: {error.message}",
        )


def _find(name: str | None, history: RemoteHistory, ref: str | None) -> SnapshotId:
    """Returns what :meth:`RemoteHistory.find` does; its error names the history."""
    try:
        return history.find(ref)
    except NotOnRemote as error:
        error.history = f"{name}/{history.id[:12]}" if name is not None else None
        raise


def _tree_paths(context: Context, paths: Iterable[PathLike]) -> tuple[bytes, ...]:
    root = context.root
    return tuple(treepath.from_user(path, root=root, base=root) for path in paths)


def _by_address(place: str, names: Container[str]) -> KnownRemote:
    """Returns the remote at an address; ``names`` are those that the store knows.

    Raises NotFound for what is not an address.
    """
    directory = directory_of(place)
    url = place if directory is None else os.path.abspath(directory)
    is_path = "://" in place or place.startswith(("/", "."))  # its disk may not be mounted
    if directory is not None and not is_path and not os.path.lexists(url):
        name = re.split("[/@:]", place)[0]
        words = f"; a history of {name} is {name}#HISTORY" if name in names else ""
        raise NotFound(
            f"There is neither a remote nor a directory {quoted(place)}{words}",
            code=ErrorCode.REMOTE_NOT_FOUND,
        )
    return KnownRemote(url, bytes(FILE_ID_SIZE), is_encrypted=False)


def _suited_for(
    url: str, blobs: Blobs, opener: Opener, format_: RemoteFormat | None, *, only_collector: bool
) -> tuple[Collection, bool]:
    """Tries out a place; returns who may collect garbage there, and whether it sends parts.

    Where a remote is, which ``format_`` describes, less is tried out: the rest was when that was
    set up. Raises RemoteFailed.
    Raises Refused for ``only_collector`` on a server that lists late, or that replaces a file by
    one that is created: the late request of a killed collection would do that.
    """
    from treesnap.remote.blobs.probe import Creation

    try:
        report = try_out(blobs, lambda: opener(url, make=True), is_again=format_ is not None)
    except RemoteFailed as error:
        # Readers and writers may not write the files of a probe; the machine that set it up did.
        if format_ is None or error.code != ErrorCode.REMOTE_DENIED:
            raise
        return format_.collection, True
    if only_collector:
        if report.creation is not Creation.NONE and report.lists_current:
            return Collection.ONE, report.has_ranges
        fault = "may list late" if not report.lists_current else "replaces files that are there"
        raise Refused(
            f"The server of {quoted(url)} {fault}, so no machine may collect garbage there",
            code=ErrorCode.REMOTE_UNRELIABLE,
        )
    is_sound = report.creation is Creation.ATOMIC and report.lists_current
    return (Collection.ANY if is_sound else Collection.NONE), report.has_ranges


@contextmanager
def _alone(remote: _RemoteSession, operation: str) -> Iterator[None]:
    """Where one machine collects, keeps its other processes out; raises Busy."""
    if remote.connection.format.collection is not Collection.ONE:
        yield
        return
    wait_s = remote.session.context.wait_s
    with _registry(remote.session).exclusive_use(remote.name, operation, wait_s):
        yield


@contextmanager
def _history_lock(session: Session) -> Iterator[None]:
    """Keeps other processes from pushing the same root; raises Busy."""
    if not session.root.is_registered():
        yield
        return
    path, what = session.root.file("pushes-lock"), "The history of the root on remotes"
    wait_s = session.context.wait_s
    with held(session.fs, path, operation="push", what=what, wait_s=wait_s):
        yield


def _warn_of_copies(context: Context, connection: Connection) -> None:
    for where, problem in sorted(connection.files.mended.items()):
        context.monitor.warn(
            WarningCode.REMOTE_FILE_DAMAGED,
            f"{where} was read from a copy, and should be repaired: {problem}",
        )


def _warn_of_damage(context: Context, connection: Connection, view: View) -> None:
    _warn_of_copies(context, connection)
    for where, error in sorted(view.lacks.items()):
        context.monitor.warn(
            WarningCode.REMOTE_FILE_DAMAGED,
            f"{where} cannot be read, and nothing is stored there meanwhile: {error.message}",
        )
    for where, error in sorted(view.unsigned.items()):
        context.monitor.warn(
            WarningCode.REMOTE_FILE_DAMAGED,
            f"{where} was written by no machine of the remote, and is left out: {error.message}",
        )
    for name, error in sorted(view.recovered.items()):
        context.monitor.warn(
            WarningCode.REMOTE_FILE_DAMAGED,
            f"{name} was read from its packs, and should be repaired: {error.message}",
        )
    for name, error in sorted(view.damaged.items()):
        context.monitor.warn(
            WarningCode.REMOTE_FILE_DAMAGED,
            f"What was pushed as {name} cannot be read, and is left out: {error.message}",
        )


def _warn_of_left_out(context: Context, where: str, left_out: Sequence[LeftOut]) -> None:
    for item in left_out[:_WARNED_MAX]:
        context.monitor.warn(
            WarningCode.REMOTE_SNAPSHOT_DAMAGED,
            f"Snapshot {item.snapshot_id[:12]} of {quoted(where)} is left out: {item.message}",
        )
    if len(left_out) > _WARNED_MAX:
        context.monitor.warn(
            WarningCode.REMOTE_SNAPSHOT_DAMAGED,
            f"{len(left_out) - _WARNED_MAX} more snapshots of {quoted(where)} are left out",
        )


def _maybe_newer(view: View, history: RemoteHistory) -> tuple[str, ...]:
    """Returns the commits that cannot be read, and that may hold newer snapshots of a history.

    A machine reads the epoch before each push, and epochs never fall.
    """
    epoch = max(commit.name.number for commit in history.commits)
    names = [str(name) for name in view.damaged if name.number >= epoch]
    folded = [name for name in view.lacks if name.startswith(f"{Folder.CATALOG}/")]
    return tuple(sorted([*names, *folded]))


def _warn_of_readers(context: Context, directory: str) -> None:
    """Warns where other users may read what is pushed to a directory, whatever modes it had."""
    real = real_target(directory)
    try:
        mode = stat.S_IMODE(os.stat(real).st_mode)
    except OSError:  # an opener of the caller's has it elsewhere
        return
    if mode & _READABLE_BY_OTHERS:
        context.monitor.warn(
            WarningCode.REMOTE_READABLE,
            f"Other users can read what is pushed to {quoted(real)}: its mode is {mode:04o}, and "
            "the remote is not encrypted",
        )


def _refuse_inside(session: Session, directory: str) -> None:
    """Raises InvalidArgument for a remote that would be captured with a root, or in the store."""
    real = real_target(directory)
    for root in map(os.fsdecode, registered_roots(session.fs, session.store.layout)):
        if os.path.commonpath([real, root]) == root:
            raise InvalidArgument(
                f"The directory {quoted(real)} lies in the root {quoted(root)}, whose snapshots "
                "would hold the remote"
            )
    if os.path.commonpath([real, store := os.path.realpath(session.store.path)]) == store:
        raise InvalidArgument(f"The directory {quoted(real)} lies in the store")


def _warn_of_ended_invitations(remote: _RemoteSession) -> None:
    count = remote.connection.files.members.writer_count
    if count:
        remote.session.monitor.warn(
            WarningCode.INVITATIONS_ENDED,
            f"{count_text(count, 'writer')} of {quoted(remote.name)} can deliver no more, and what "
            "was not received counts no more",
        )


def _name_of(root: Root) -> str:
    """Returns what people know the history of a root by."""
    return f"{os.path.basename(os.fsdecode(root.path)) or 'root'}@{platform.node() or 'machine'}"


def _become_another_if_copied(remote: _RemoteSession) -> None:
    """Goes on as another machine where this one, or another one, is a copy."""
    machine = _registry(remote.session).machine(remote.connection.format.remote_id)
    members = remote.connection.files.members
    if remote.view.is_ahead_of(members.own_id, machine.sequence()):
        machine.renew()


def _history_to_push(remote: _RemoteSession) -> PushedHistory:
    """Returns the root's history on a remote: a new one at the first push.

    It is also a new one, which goes on from the other, where a commit of it holds what this root
    never had, or the machine sent more than this store knows: then this machine, or another, is a
    copy, and each goes on as a machine and with a history of its own; and so where the machine is
    another one since another root found that out. A commit of which this machine only never learned
    that it was written is its own.
    """
    root = remote.session.root
    machine = _registry(remote.session).machine(remote.connection.format.remote_id)
    members = remote.connection.files.members
    _become_another_if_copied(remote)
    name = _name_of(root)
    pushed = remote.own_history()
    if pushed is None:
        return PushedHistory(HistoryName.new(members.own_id, name))
    local = {item.id for item in remote.session.store.snapshots.names(root.id)}
    own = frozenset(pushed.commits)
    unknown = {
        key: entry
        for key, entry in remote.view.visible.items()
        if entry.history.id == pushed.history.id and key not in own
    }
    there = (snapshot_id(item) for entry in unknown.values() for item in entry.snapshots)
    is_own = pushed.history.is_of(members.own_id)  # else its machine is another one since
    if is_own and all(item in local for item in there):
        return pushed._replace(commits=(*pushed.commits, *unknown))
    if is_own:
        machine.renew()
    return PushedHistory(HistoryName.new(members.own_id, name, pushed.history.id))


def _count_lacking(remote: _RemoteSession) -> int | None:
    """Returns how many snapshots of the root a push would store; None without a history there."""
    own = remote.own_history() if remote.session.root.is_registered() else None
    if own is None:
        return None
    there = {SnapshotId(item.hex()) for item in own.pruned}
    for history in remote.histories():
        if history.id == own.history.id.hex():
            there.update(history.records)
    return len(_lacking(remote.session, there, set(), 0, every_kind=False))


def _lacking(
    session: Session,
    there: Container[SnapshotId],
    chosen: set[SnapshotId],
    after: int,
    *,
    every_kind: bool,
) -> list[bytes]:
    """Returns the payloads of the snapshots that a push stores, oldest first.

    They are none of ``there``, and came after the sequence ``after``. Where none is ``chosen``,
    it is those that a person asked for, named or pinned, without merges that have no effect.
    """
    log, root = session.store.snapshots, session.root
    payloads = []
    merges = set[SnapshotId]()
    for item in reversed(log.names(root.id)):
        if item.id in there or (chosen and item.id not in chosen) or item.sequence <= after:
            continue
        payload = log.payload(root.id, item)
        record = decode_snapshot(payload)
        is_asked_for = record.kind == SnapshotKind.MANUAL or record.name is not None
        if chosen or every_kind or is_asked_for or log.state(item.id).pinned:
            payloads.append(payload)
            if MERGED in record.tags:
                merges.add(item.id)
    if merges and not chosen:
        idle = merges_without_effect(session, merges)
        payloads = [item for item in payloads if snapshot_id(item) not in idle]
    return payloads


@contextmanager
def _while_they_exist(session: Session, ids: Sequence[SnapshotId]) -> Iterator[None]:
    """Raises NotFound, not Corrupt, for what is missing because a snapshot was deleted meanwhile.

    A push takes no lock, so a collection may delete content under it.
    """
    try:
        yield
    except Corrupt as error:
        there = session.store.snapshots.listing(session.root.id)
        gone = [item for item in ids if item not in there]
        if not gone:
            raise
        raise NotFound(f"Snapshot {gone[0][:12]} was deleted while it was pushed") from error


def _decisions(session: Session, snapshots: Sequence[Snapshot], policy: Policy) -> list[Decision]:
    """Returns what becomes of each snapshot of a history, newest first."""
    newest = next((item.id for item in snapshots if item.record.scope is None), None)
    return [
        item._replace(reasons=(*item.reasons, "newest")) if item.snapshot.id == newest else item
        for item in decide(snapshots, policy, session.context.clock_ns())
    ]


def _merge_bases(session: Session, done: FetchResult) -> list[Snapshot]:
    there = fetched_root(session.store, done.remote, done.history_name, done.history_id)
    return merge_bases(session, there, done.history_name)


def _is_cloned(context: Context) -> bool:
    """Tells whether the root is a directory that was cloned, and restored since."""
    with translating_os_errors("look at the directory"):
        if not os.path.lexists(context.root) or not os.listdir(context.root):
            return False
    try:
        with opened(context, "clone", recover=False) as session:
            return session.root.last_from_elsewhere > 0 and bool(load_history(session.root).undo)
    except StoreMissing:
        return False


def _newest_here(session: Session, history: RemoteHistory) -> SnapshotId:
    """Returns the newest snapshot of a history that the root has, where it lacks older ones.

    That is what a clone was interrupted at that had restored it. Raises Refused else.
    """
    own = {item.id for item in session.store.snapshots.names(session.root.id)}
    here = [key for key in history.records if key in own]
    if not here or len(here) == len(history.records):
        _require_empty(session.context.root)
    return here[-1] if here else next(reversed(history.records))


def _require_empty(directory: str) -> None:
    """Raises Refused for a directory that holds something; one that does not exist is empty."""
    with translating_os_errors("look at the directory"):
        if os.path.lexists(directory) and os.listdir(directory):
            raise Refused(
                f"The directory {quoted(directory)} is not empty",
                code=ErrorCode.TARGET_NOT_EMPTY,
                path=directory,
            )


def _require_only(session: Session, ids: Iterable[SnapshotId]) -> None:
    """Raises Refused where the root has snapshots that are not of the history that is cloned.

    A clone that was killed while it restored has left one of the empty directory.
    """
    log, own = session.store.snapshots, frozenset(ids)
    others = (name for name in log.names(session.root.id) if name.id not in own)
    records = (decode_snapshot(log.payload(session.root.id, name)) for name in others)
    if any(item.kind != SnapshotKind.SAFETY or item.totals != Totals() for item in records):
        raise Refused(
            f"The directory {quoted(session.context.root)} has a history of its own",
            code=ErrorCode.ROOT_TAKEN,
            path=session.context.root,
        )


def _info(name: str, known: KnownRemote) -> RemoteInfo:
    return RemoteInfo(
        name,
        known.url,
        known.remote_id.hex(),
        known.is_encrypted,
        known.may_collect,
        known.appends_only,
    )
