"""What ``verify --repair`` does about what was found.

It never removes an intact object or a readable snapshot; what it moves out of the way
lies in ``quarantine``. Writers and readers work on meanwhile; the collector is locked out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial

from treesnap.core.codec.pack import IndexEntry
from treesnap.core.codec.snapshot import (
    RECORD_SIZE_MAX,
    SNAPSHOT,
    corrected,
    decode_snapshot,
    records_in,
    snapshot_id,
)
from treesnap.core.fs.durable import read_readable, replace_file
from treesnap.core.fs.os_errors import error_text, is_unreadable
from treesnap.core.model.entries import ObjectId
from treesnap.core.model.errors import Corrupt, NewerVersion, NotFound, TreesnapError, WarningCode
from treesnap.core.model.events import Monitor, Phase
from treesnap.core.model.quantities import count_text
from treesnap.core.model.results import RecoveredObject
from treesnap.core.model.snapshots import SnapshotId
from treesnap.core.model.type_names import TYPE_CHECKING
from treesnap.core.store.fence import Maintaining
from treesnap.core.store.maintenance.check.quarantined import quarantined_objects
from treesnap.core.store.quarantine import Quarantine
from treesnap.core.store.store import Store
from treesnap.core.store.writer import Writer
from treesnap.core.store.writer_slot import slot_states

if TYPE_CHECKING:
    from treesnap.core.store.maintenance.check.checker import BadSnapshot, Checker


class Repair:
    """Repairs what a check found. The caller holds the collector's lock."""

    def __init__(
        self,
        store: Store,
        checker: Checker,
        maintaining: Maintaining,
        *,
        monitor: Monitor,
        recover_objects: Callable[[], list[RecoveredObject]],
    ) -> None:
        self._monitor = monitor
        self._fs = store.writing_fs
        self._find_objects = recover_objects
        self._store = store
        store.index.reads_first = True
        self._checker = checker
        self._maintaining = maintaining
        self._quarantine = Quarantine(self._fs, store.layout)
        self.repaired: list[str] = []
        """A sentence for everything that was done."""
        self.recovered: list[RecoveredObject] = []

    def run(self) -> None:
        """Does everything that can be done; what cannot be done is a warning."""
        # Snapshots first: what they say of roots and journals is needed for the others.
        self._try(self._mend_snapshots)
        for finding in self._checker.findings:
            self._try(partial(finding.mend, self._store))
        if {problem.code for problem in self._checker.problems} & {
            "bad-index",
            "bad-pack",
            "missing-object",
            "damaged-object",
        }:
            if self._checker.has_newer_objects:
                self._monitor.warn(
                    WarningCode.NOT_REPAIRED,
                    "Packs and index are left as they are: a newer treesnap wrote into some packs",
                )
                return
            self._try(self._empty_bad_packs)
            self._try(self._rebuild_index)
            self._try(self._read_quarantine)
            self._try(self._recover_objects)

    def _try(self, mend: Callable[[], str | None]) -> None:
        try:
            done = mend()
        except (TreesnapError, OSError) as error:
            self._monitor.warn(
                WarningCode.NOT_REPAIRED, f"Something could not be repaired: {error_text(error)}"
            )
            return
        if done is not None:
            self.repaired.append(done)

    def _rebuild_index(self) -> str:
        """Writes one index part for everything in the packs, without damaged objects.

        Looks at the slots again when the packs were read: the tail of a pack that a writer has open
        is the writer's, who may truncate what was read of it.
        """
        self._forget_caches()
        index = self._store.index
        old = [*index.parts, *index.damaged]
        entries: list[IndexEntry] = []
        covered = {}
        covered_ends = index.covered()
        busy = self._busy_packs()
        sounds = {pack_id: self._store.sound(pack_id) for pack_id in self._store.packs.sizes()}
        busy |= self._busy_packs()
        sizes = self._store.packs.sizes()
        for pack_id, sound in sounds.items():
            end = sound.covered
            if pack_id in busy or sizes.get(pack_id, 0) < end:
                end = min(covered_ends.get(pack_id, 0), end)
            covered[pack_id] = end
            entries += [
                entry
                for entry in sound.indexed
                if entry.offset < end and entry not in self._checker.bad_objects
            ]
        self._store.replace_index([sorted(entries)], covered, old)
        return (
            f"Rebuilt the index from {count_text(len(covered), 'pack')} "
            f"with {count_text(len(entries), 'object')}"
        )

    def _busy_packs(self) -> set[bytes]:
        """Returns the packs that writers have open."""
        states = slot_states(self._fs, self._store.layout)
        return {state.pack_id for state in states if state.is_busy}

    def _empty_bad_packs(self) -> str | None:
        """Copies intact objects out of damaged packs, durably, and moves the packs to quarantine.

        Copies first, as long as that takes, and behind the fence what was appended meanwhile.
        """
        bad = frozenset(self._checker.bad_packs & self._store.packs.sizes().keys())
        if not bad:
            return None
        copied: set[ObjectId] = set()
        self._copy_intact(bad, copied)

        def settle() -> frozenset[bytes]:
            self._copy_intact(bad, copied)
            self._forget_caches()
            return bad

        going = self._maintaining.retire(bad, settle, self._quarantine)
        self._maintaining.finish()
        return (
            f"Moved {count_text(len(going), 'damaged pack')} to quarantine, after copying "
            f"{count_text(len(copied), 'object')} in good order from there"
        )

    def _copy_intact(self, packs: frozenset[bytes], copied: set[ObjectId]) -> None:
        """Copies what is intact in some packs and was not copied yet, durably."""
        right = [
            entry
            for pack_id in sorted(packs)
            for entry in self._entries(pack_id)
            if entry.id not in copied and self._store.packs.is_right(entry)
        ]
        if not right:
            return
        self._monitor.begin(Phase.REWRITE, len(right), None)
        with Writer(self._store) as writer:
            writer.copy(right, packs)
        copied.update(entry.id for entry in right)

    def _entries(self, pack_id: bytes) -> list[IndexEntry]:
        try:
            return self._store.inventory(pack_id).entries
        except FileNotFoundError:
            return []

    def _read_quarantine(self) -> str | None:
        """Stores again what is intact in quarantined packs, and lost to the store otherwise.

        What lost directories need is not known before they are found, so everything is stored
        that the store lacks; the next collection removes what nothing needs.
        """
        if not self._checker.lost:
            return None
        with Writer(self._store) as writer:
            for kind, content in quarantined_objects(self._store):
                writer.put(kind, content)
            writer.flush()
            added = writer.objects_added
        if not added:
            return None
        return f"Took {count_text(added, 'intact object')} back from quarantine"

    def _recover_objects(self) -> str | None:
        """Recovers lost objects from live trees; a capture after this reads every file.

        Also where none was found: what a cache takes for stored may be lost, and the tree of
        another root, which is not there now, may have it.
        """
        if not self._checker.damaged:
            return None
        self.recovered += self._find_objects()
        self._forget_caches()
        if not self.recovered:
            return (
                "Made the next capture of each root read every file again; no live tree holds "
                "what is lost"
            )
        return (
            f"Recovered {count_text(len(self.recovered), 'lost object')} from live trees; "
            "the next capture of each root reads every file again"
        )

    def _forget_caches(self) -> None:
        """Lets the next capture of each root read every file, where anything is lost.

        Before a damaged pack goes, too, and before the index forgets one that is lost: a repair
        that is killed after that would leave captures to rely on what was in it.
        """
        if self._checker.damaged:
            for root in self._store.roots_with_files():
                self._try(partial(root.forget_cache, "verify", self._store.wait_s))

    def _mend_snapshots(self) -> str | None:
        """Rewrites the files of snapshots whose records are still in some damaged file."""
        records = dict(self._records())
        for bad in self._checker.bad_snapshots:
            self._try(partial(self._mend_locked, bad, records.get(bad.name.id)))
        return None

    def _mend_locked(self, bad: BadSnapshot, record: bytes | None) -> str | None:
        root = self._store.root_by_id(bad.root_id)
        with ExitStack() as stack:
            with suppress(NotFound):  # all but its snapshots is gone: no process works in it
                stack.enter_context(root.locked("verify", self._store.wait_s))
            return self._mend_snapshot(bad, record)

    def _mend_snapshot(self, bad: BadSnapshot, record: bytes | None) -> str | None:
        """Decides by what the file is now; one that was deleted meanwhile does not come back."""
        log = self._store.snapshots
        path = log.path(bad.root_id, bad.name)
        short = bad.name.id[:12]
        try:
            log.load(bad.root_id, bad.name)
            return None
        except (NotFound, NewerVersion):
            return None
        except TreesnapError:
            pass
        self._remains(path)
        if record is not None:
            self._quarantine.keep_copy(path)
            content = SNAPSHOT.frame(record)
            replace_file(self._fs, path, content, temporary=self._store.layout.temporary)
            return f"Rewrote the file of snapshot {short}"
        with log.letting_go([bad.name], bad.root_id):
            target = self._quarantine.take(path)
        return f"Moved the damaged snapshot {short} to {target}"

    def _remains(self, path: str) -> bytes:
        """Returns what the disk gives back of a file; raises OSError for one that is closed."""
        try:
            return read_readable(self._fs, path, RECORD_SIZE_MAX)
        except OSError as error:
            if not is_unreadable(error):
                raise
            return b""

    def _records(self) -> Iterator[tuple[SnapshotId, bytes]]:
        """Yields the whole records of damaged snapshots that damaged files hold, with their ids.

        The frame around a record may be damaged, one byte of it, or the file be that of another
        snapshot.
        """
        bad_ids = {bad.name.id for bad in self._checker.bad_snapshots}
        for bad in self._checker.bad_snapshots:
            path = self._store.snapshots.path(bad.root_id, bad.name)
            try:
                data = self._remains(path)
            except OSError:  # told when it is mended
                continue
            candidates = dict.fromkeys(records_in(data))
            by_id = {snapshot_id(payload): payload for payload in candidates}
            if not by_id.keys() & bad_ids:
                for payload in filter(None, (corrected(it, bad.name.id) for it in candidates)):
                    by_id[bad.name.id] = payload
            for identity in by_id.keys() & bad_ids:
                if _is_readable(by_id[identity]):
                    yield identity, by_id[identity]


def _is_readable(payload: bytes) -> bool:
    try:
        decode_snapshot(payload)
    except Corrupt:
        return False
    return True
