"""What must be true of a remote when a soak of it is over."""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from itertools import count
from pathlib import Path

import treesnap
from oracle import difference, record
from remote.soak.remote_actors import RemotePlace
from soak.place import removed_afterwards
from treesnap.core.model.errors import TreesnapError
from treesnap.core.model.snapshots import SnapshotKind
from treesnap.remote import HistoryInfo, Remotes
from treesnap.remote.commands.secret import secret_of


class RemoteChecker:
    """Clones every history, and compares every snapshot with what was captured."""

    def __init__(self, place: RemotePlace, url: str) -> None:
        self.place = place
        self.problems: list[str] = []
        self.counts: Counter[str] = Counter()
        """How many snapshots were acknowledged, deleted, lost and restored exactly."""
        self._url = url
        self._numbers = count()
        self._states: dict[str, list[str]] = {}
        self._acknowledged: set[str] = set()
        self._deleted: set[str] = set()
        for number in range(len(place.roots)):
            for line in place.ledger(number).log.lines():
                if line["what"] == "captured":
                    self._states |= dict.fromkeys(line["ids"], line["states"])
                elif line["what"] == "acknowledged":
                    self._acknowledged |= {*line["ids"]}
                elif line["what"] == "deleting":
                    self._deleted |= {*line["ids"]}

    def run(self) -> None:
        """Does everything. What raises is a problem, and the rest is done all the same."""
        place = self.place
        last = place.directory / "last-store"
        shutil.copytree(place.directory / "first-store-0", last)
        handle = treesnap.open(place.directory / "nothing", last)
        handle.store_trust()
        remotes = Remotes(handle, secret_of(handle))
        try:
            remotes.collect()
            for problem in remotes.verify(read_data=True).problems:
                self.problems.append(f"verify: {problem}")
        except TreesnapError as error:
            self.problems.append(f"the last collection and verify: {error!r}")
        found: defaultdict[str, list[str]] = defaultdict(list)
        for history in remotes.histories():
            for snapshot, differences in self._cloned(history).items():
                found[snapshot] += differences
        exact = {snapshot for snapshot, differences in found.items() if not differences}
        wanted = self._acknowledged - self._deleted
        self.problems += [f"snapshot {one} is lost" for one in sorted(wanted - found.keys())]
        self.counts["acknowledged"] = len(self._acknowledged)
        self.counts["deleted"] = len(self._acknowledged & self._deleted)
        self.counts["lost"] = len(wanted - found.keys())
        self.counts["restored exactly"] = len(wanted & exact)

    def _cloned(self, history: HistoryInfo) -> dict[str, list[str]]:
        """Returns the snapshots of a history, each with how it differs from what was captured."""
        aside = self.place.directory / "clones" / f"{next(self._numbers)}"
        aside.mkdir(parents=True)
        found = {}
        try:
            handle = treesnap.open(aside / "root", aside / "store")
            cloned = Remotes(handle, secret_of(handle)).clone(
                self._url, history.id, privileged=True
            )
            whole = self._differences(cloned.snapshot_id, aside / "root")
            self.problems += [f"the clone of {history.name}: {line}" for line in whole]
            captured = [one for one in handle.list() if one.kind == SnapshotKind.MANUAL]
            for one in captured:  # a clone itself may make another one
                with removed_afterwards(aside / "export") as target:
                    handle.restore(one.id, to=target, privileged=True)
                    found[str(one.id)] = self._differences(one.id, target)
        except TreesnapError as error:
            self.problems.append(f"the clone of {history.name}: {error!r}")
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        self.problems += [f"{one}: {line}" for one, lines in found.items() for line in lines]
        return found

    def _differences(self, snapshot: str, path: Path) -> list[str]:
        states = self._states.get(snapshot)
        if not states:
            return ["no machine captured it"]
        (state,) = states
        return difference(self.place.ledger(0).states.load(state), record(path))
