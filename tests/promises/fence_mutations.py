"""Each rule of the fence broken on purpose, and what must notice.

The rules are those of ``fence_protocol``, whose model has to find each of them as well.
``run_fence.py`` tries them; ``test_table.py`` keeps rules and sources in step.
"""

from __future__ import annotations

from typing import NamedTuple

from promises.mutations import MUTATIONS, Mutation

MATRIX = "core/concurrency/test_beside_maintenance.py::test_nothing_is_lost_beside_a_"
STANDING = "core/concurrency/test_during_collection.py::test_a_writer_that_stands_through_two_"
PENDING = (
    "core/concurrency/test_during_collection.py"
    "::test_a_writer_that_is_pending_when_a_collection_looks_again_loses_nothing"
)
SHARED = "remote/test_shared_snapshots.py::test_"
KILLED_MOVE = "core/crash/test_store_place.py::test_a_store_that_is_moved_is_always_found"


class Broken(NamedTuple):
    """A rule that the product no longer keeps."""

    rule: str
    mutation: Mutation
    matrix: str | None = None
    """The pair of commands that shows it, in full size."""
    orders: str | None = None
    """Tests with one order of steps each, or of one rule, that show it."""
    is_soaked: bool = False
    """Whether it shows within any second of work, so that a soak of a minute finds it."""


def _broken(rule: str, source: str, *edits: tuple[str, str], **found: str | bool) -> Broken:
    return Broken(rule, Mutation(f"broken: {rule}", source, edits, {}), **found)  # type: ignore[arg-type]  # by name


PUBLISHES = next(each for each in MUTATIONS if "although collections overtook it" in each.what)
BROKEN = (
    _broken(
        "one way",
        "core/store/maintenance/check/repair.py",
        (
            "        going = self._maintaining.retire(bad, settle, self._quarantine)\n",
            (
                "        going = bad\n"
                "        for pack_id in sorted(bad):\n"
                "            with suppress(FileNotFoundError):\n"
                "                self._quarantine.take(self._store.layout.pack(pack_id))\n"
                "        self._store.packs.close()\n"
            ),
        ),
        orders=f"{STANDING}repairs_loses_nothing",
    ),
    _broken(
        "announce",
        "core/store/fence.py",
        ("CollectorState(epoch=epoch, condemned=condemned)", "CollectorState(epoch=epoch)"),
        ("CollectorState(epoch=epoch + 1, condemned=condemned)", "CollectorState(epoch=epoch + 1)"),
        matrix="command[gc-deleted content]",
        orders="core/unit/ops/test_gc.py",
    ),
    _broken(
        "fence",
        "core/store/fence.py",
        (
            "CollectorState(epoch=epoch + 1, condemned=condemned)",
            "CollectorState(epoch=epoch, condemned=condemned)",
        ),
        matrix="command[deleted content-gc]",
        orders=PENDING,
    ),
    _broken(
        "settle",
        "core/store/fence.py",
        ("        going = settle() & packs\n", "        going = packs\n"),
        matrix="command[gc-deleted content]",
        orders="core/unit/ops/test_gc.py",
    ),
    _broken(
        "pending first",
        "core/store/maintenance/collection.py",
        (
            "        for name in self._fs.list_names(layout.pending):\n",
            (
                "        published = list(log.all_names())\n"
                "        for name in self._fs.list_names(layout.pending):\n"
            ),
        ),
        ("in list(log.all_names()):", "in published:"),
        orders=PENDING,
    ),
    _broken(
        "copy first",
        "core/store/maintenance/collection.py",
        (
            "                self._copy(fitting, going)\n",
            (
                "                self._delete(frozenset(pack.id for pack in [*dead, *fitting]))\n"
                "                self._copy(fitting, going)\n"
            ),
        ),
        (
            (
                "            self._delete(frozenset(pack.id for pack in [*dead, *fitting]))\n"
                "            dead = []\n"
            ),
            "            dead = []\n",
        ),
        matrix="command[gc-known root]",
        orders="core/unit/ops/test_gc.py",
        is_soaked=True,
    ),
    _broken(
        "avoid",
        "core/store/writer.py",
        ("            self._avoid = state.condemned\n", "            self._avoid = frozenset()\n"),
        matrix="command[gc-deleted content]",
        orders=(
            "core/concurrency/test_during_collection.py"
            "::test_a_writer_that_begins_when_packs_are_about_to_go_relies_on_none_of_them"
        ),
    ),
    Broken(
        "publish",
        PUBLISHES,
        matrix="command[deleted content-gc]",
        orders=f"{STANDING}collections_loses_nothing",
    ),
    _broken(
        "judge",
        "core/ops/maintenance/config.py",
        (
            (
                "with locked_roots(session.fs, session.store.layout, context.wait_s):\n"
                "                    _change("
            ),
            "if True:\n                    _change(",
        ),
        matrix="command[config-other config]",
        orders="core/store/test_small_files_of_others.py",
    ),
    _broken(
        "own hold",
        "core/store/roots.py",
        (
            '        path = self.file(f"{HOLD_PREFIX}{identity}-{os.urandom(8).hex()}")\n',
            '        path = self.file(f"{HOLD_PREFIX}{identity}")\n',
        ),
        orders="core/store/test_small_files_of_others.py",
        is_soaked=True,
    ),
    _broken(
        "shared",
        "core/store/snapshots.py",
        (
            ("        with locked_roots(self._fs, self._layout):\n            state = change("),
            "        if True:\n            state = change(",
        ),
        orders=f"{SHARED}what_two_roots_say_at_once_both_holds",
    ),
    _broken(
        "last",
        "core/store/snapshots.py",
        (
            "sync_directory(self._fs, self._layout.states)\n            yield\n",
            "sync_directory(self._fs, self._layout.states)\n        yield\n",
        ),
        orders=(
            f"{SHARED}nothing_is_left_when_another_root_says_something_and_lets_go_at_any_call"
        ),
    ),
    _broken(
        "state first",
        "core/store/snapshots.py",
        (
            "            removed = [unlink_if_present(",
            "            yield\n            removed = [unlink_if_present(",
        ),
        (
            "sync_directory(self._fs, self._layout.states)\n            yield\n",
            "sync_directory(self._fs, self._layout.states)\n",
        ),
        orders=(f"{SHARED}a_kill_at_any_call_of_the_last_deletion_leaves_nothing_said_of_nothing"),
    ),
    _broken(
        "enter",
        "core/store/lock.py",
        (
            (
                "    with _gate(fs, store_path, wait_s, exclusive=False) as is_locked:\n"
                "        del is_locked\n"
                "        yield\n"
            ),
            "    yield\n",
        ),
        matrix="command[move far-new root]",
        orders="core/store/test_moves_beside_writers.py",
    ),
    _broken(
        "close",
        "core/store/lock.py",
        (
            "    with _gate(fs, store_path, wait_s, exclusive=True) as is_locked:\n",
            "    with _gate(fs, store_path, wait_s, exclusive=False) as is_locked:\n",
        ),
        matrix="command[move far-new root]",
        orders="core/store/test_moves_beside_writers.py",
    ),
    _broken(
        "same",
        "core/store/lock.py",
        (
            "    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)\n",
            "    return True\n",
        ),
        orders="core/store/test_moves_beside_writers.py",
    ),
    _broken(
        "alive",
        "core/ops/maintenance/store_place.py",
        (
            "        for hold in chain.from_iterable(root.holds().values()):\n",
            "        for hold in chain():\n",
        ),
        orders="cli/test_store_place.py",
    ),
    _broken(
        "order",
        "core/ops/access.py",
        (
            (
                "            collector_held(context.fs, layout, operation=operation, "
                "wait_s=context.wait_s) as proof,\n"
                "            opened(context, doing, writing=True, recover=recover) as session,\n"
            ),
            (
                "            opened(context, doing, writing=True, recover=recover) as session,\n"
                "            collector_held(context.fs, layout, operation=operation, "
                "wait_s=context.wait_s) as proof,\n"
            ),
        ),
        orders="core/concurrency/test_order_of_locks.py",
    ),
    _broken(
        "note copy",
        "core/ops/maintenance/store_place.py",
        ("        note_move(partial.fs, Layout(partial.path), move)\n", ""),
        orders=KILLED_MOVE,
    ),
    _broken(
        "note left",
        "core/ops/maintenance/store_place.py",
        ("        note_move(fs, session.store.layout, move)\n", ""),
        orders=KILLED_MOVE,
    ),
    _broken(
        "heed",
        "core/store/store.py",
        (
            "and os.path.realpath(self.path) != (place := move.place):",
            "and not (place := move.place):",
        ),
        orders=KILLED_MOVE,
    ),
    _broken(
        "unnote",
        "core/ops/access.py",
        (
            "        layout = Store.open(context.fs, context.store_path, writing=True).layout\n",
            (
                "        store = Store.open(context.fs, context.store_path, writing=True)\n"
                "        layout = store.layout\n"
                "        if store.was_moving:\n"
                "            unlink_if_present(context.fs, layout.moving)\n"
            ),
        ),
        orders=(
            "core/crash/test_store_place.py::test_no_process_takes_back_what_a_move_under_way_has_noted"
        ),
    ),
)
