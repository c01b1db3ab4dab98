"""Each file of a store, damaged in each way: named or harmless, repaired or named for good.

In every case each snapshot restores exactly or fails cleanly, before and after a repair
and a collection; what was readable stays so. The suite does a sample, ``tox -e long`` a third for
each of its seeds.
"""

from __future__ import annotations

import shutil
from contextlib import suppress

import pytest
import zstandard

from damage_scene import KINDS, THROWAWAYS, Damage, Scene, all_damages, build, inflict, spread
from sampling import seeded
from treesnap.core.model.errors import Corrupt, TreesnapError
from treesnap.core.model.results import VerifyResult

SILENT = {
    "collected size",
    "slot",
    "pending",
    "stat cache",
    "root pointer",  # a copy of the record that counts only while they agree
    "export record",
    "format",
    "collector state",
    "store settings",
    "root settings",
    "lock",
}
"""Kinds of which damage may mean nothing: what can be thrown away, and bytes that say nothing."""

HARMLESS = {("index part", "swap"), ("history", "swap")}
"""What changes nothing: parts have random names, and undo finds no snapshot of another root."""

WHOLE_EVERY = 16
"""How many damages that are found to be the same are one that is checked wholly."""
ZSTD_MAGIC = bytes.fromhex("28b52ffd")


@pytest.fixture(scope="module")
def scene(tmp_path_factory) -> Scene:
    with pytest.MonkeyPatch.context() as patch:
        return build(tmp_path_factory.mktemp("damage"), patch.setattr)


def test_the_scene_is_whole_and_has_every_kind_of_file(scene):
    scene.reset()

    for pattern in KINDS.values():
        assert list(scene.store.glob(pattern))
    named = {
        str(path.relative_to(scene.store)) for path in scene.store.rglob("*") if path.is_file()
    }
    known = {
        str(path.relative_to(scene.store))
        for pattern in [*KINDS.values(), "collector/reserve-*", "made-here"]
        for path in scene.store.glob(pattern)
    }
    assert named == known
    assert scene.handle().verify(read_data=True).problems == ()
    assert scene.readable() == set(scene.kept)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_named_or_harmless_and_spreads_to_nothing(scene, kind):
    check(scene, spread(all_damages_of(scene, kind), 2))


@pytest.mark.parametrize("kind", ["pack", "snapshot"])
def test_damage_of_what_a_restore_needs_is_named_and_spreads_to_nothing(scene, kind):
    """These two are tried with every change, whatever the sample of all kinds holds."""
    check(scene, spread(all_damages_of(scene, kind), 1))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_byte_of_every_file(scene, kind):
    """Of a third of all damages, which is another one for each seed."""
    check(scene, list(seeded(all_damages_of(scene, kind), 3)))


def all_damages_of(scene: Scene, kind: str) -> list[Damage]:
    scene.reset()
    return [damage for damage in all_damages(scene) if damage.kind == kind]


def check(scene: Scene, damages: list[Damage]) -> None:
    """Checks all, and raises with every case that is wrong.

    Of those that leave the same file damaged, and that a look at everything finds to be the same,
    one in sixteen is checked wholly; the others try one snapshot each, in turn.
    """
    wrong = []
    known: dict[tuple[object, ...], set[tuple[str, str]]] = {}
    keys = list(scene.kept)
    for number, damage in enumerate(damages):
        try:
            scene.reset()
            inflict(scene, damage)
            found = scene.handle().verify(read_data=True)
            alike = (damage.path, damage.how, found)
            tried = keys[number % len(keys)]
            if (
                alike not in known
                or number % WHOLE_EVERY == 0
                or scene.is_readable(*tried) != (tried in known[alike])
            ):
                known[alike] = check_wholly(scene, damage, found)
        except Exception as error:  # noqa: BLE001 - a traceback is wrong too
            wrong.append(f"{damage}: {type(error).__name__}: {error}")
    assert not wrong, f"{len(wrong)} of {len(damages)}:\n" + "\n".join(wrong[:40])


def check_wholly(scene: Scene, damage: Damage, found: VerifyResult) -> set[tuple[str, str]]:
    """Checks everything about a damage that is done; returns what can be read despite it."""
    before = scene.readable()

    check_named(scene, damage, found, before)
    collect_beside(scene, before)
    repaired = scene.handle().verify(read_data=True, repair=True)
    after = scene.readable()

    again = scene.handle().verify(read_data=True)
    assert (again.problems, again.partial) == (repaired.left, repaired.partial)
    assert {item.code for item in repaired.left} <= {"missing-object", "damaged-object"}
    assert before <= after
    assert set(scene.kept) - after == lost_in(scene, damage, repaired)
    if damage.kind in THROWAWAYS:
        assert after == set(scene.kept)
    for snapshot in repaired.partial:
        assert_exact(scene, snapshot)
    try:
        scene.handle().gc()
    except Corrupt:
        assert repaired.left
    assert scene.readable() == after
    assert scene.handle().create().snapshot.complete
    return before


def check_named(
    scene: Scene, damage: Damage, found: VerifyResult, before: set[tuple[str, str]]
) -> None:
    """Checks that what cannot be restored is named, and nothing else."""
    named = {snapshot_id for item in found.problems for snapshot_id in item.snapshot_ids}
    if "format" in {item.where for item in found.problems} and not found.snapshots:
        return  # nothing can be restored, and the file is named
    unreadable = {identity for _, identity in set(scene.kept) - before}
    assert unreadable - looks_deleted(damage) <= named
    for snapshot in found.partial:
        assert_exact(scene, snapshot)
    if damage.how != "missing" and damage.kind not in SILENT:
        is_harmless = (damage.kind, damage.how) in HARMLESS or says_nothing(scene, damage)
        assert found.problems or is_harmless
    for problem in found.problems:
        if not problem.code.endswith("-object"):
            assert (scene.base / "whole" / problem.where).exists(), problem


def says_nothing(scene: Scene, damage: Damage) -> bool:
    """Returns whether it is a bit of a pack that no reader may look at, or that changes nothing.

    The first are those of the header's bytes 12 to 15. The others lie in a Zstandard frame that
    still decompresses to the same bytes: bit 4 of its descriptor (RFC 8878, section
    3.1.1.1.1.3), the bit that calls its last block the last (3.1.1.2), for a reader that has the
    bytes of this frame alone, and, in some frames, bits of tables that no symbol uses.
    """
    if (damage.kind, damage.how) != ("pack", "flip"):
        return False
    before = (scene.base / "whole" / damage.path).read_bytes()
    now = (scene.store / damage.path).read_bytes()
    if 12 <= damage.position < 16:
        return True
    start = before.rfind(ZSTD_MAGIC, 0, damage.position)
    frame = zstandard.ZstdDecompressor().decompressobj()
    content = frame.decompress(before[start:]) if start >= 0 else b""
    end = len(before) - len(frame.unused_data)
    if start < 0 or damage.position >= end:
        return False  # in the head or the table of a block
    try:
        return zstandard.ZstdDecompressor().decompressobj().decompress(now[start:end]) == content
    except zstandard.ZstdError:
        return False


def looks_deleted(damage: Damage) -> set[str]:
    """Returns the snapshot whose file is missing: nothing says that it was not deleted."""
    if (damage.kind, damage.how) == ("snapshot", "missing"):
        return {damage.path.rpartition("-")[2]}
    return set()


def lost_in(scene: Scene, damage: Damage, result: VerifyResult) -> set[tuple[str, str]]:
    """Returns the snapshots that a repair could not bring back, as it says itself."""
    partial = {item.snapshot_id for item in result.partial}
    gone = {
        snapshot_id
        for item in result.problems
        if item.code in {"bad-snapshot", "lost-snapshot"}
        for snapshot_id in item.snapshot_ids
    }
    present = {path.name.rpartition("-")[2] for path in scene.store.glob("snapshots/*/*")}
    lost = partial | ((gone | looks_deleted(damage)) - present)
    return {key for key in scene.kept if key[1] in lost}


def assert_exact(scene: Scene, partial) -> None:
    """Checks that the paths of a partial snapshot are those that cannot be restored."""
    (root,) = [root for root, identity in scene.kept if identity == partial.snapshot_id]
    lost = scene.unreadable_files(root, partial.snapshot_id)
    named = set(partial.paths)
    every = [name.encode() for name in scene.contents[root, partial.snapshot_id]]
    covered = {
        name
        for name in every
        if any(not path or name == path or name.startswith(path + b"/") for path in named)
    }
    assert lost <= covered
    assert partial.path_count == len(named)


def collect_beside(scene: Scene, before: set[tuple[str, str]]) -> None:
    """Collects garbage in a copy of the damaged store: that may be refused, but lose nothing."""
    copy = scene.base / "copy"
    shutil.copytree(scene.store, copy)
    with suppress(TreesnapError):
        scene.handle(store=copy).gc()
    assert before <= scene.readable(copy)
    shutil.rmtree(copy)
