"""Each promise broken on purpose, and the tests that must notice.

A mutation is what a tired programmer might leave behind. Every file of tests that a row of
``docs/reference/promises.md`` names stands in a mutation of that promise; ``test_table.py`` keeps
both in step, and ``run_promises.py`` tries them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Mutation(NamedTuple):
    """A change of the sources that breaks promises."""

    what: str
    source: str
    """The module, relative to the package."""
    edits: tuple[tuple[str, str], ...]
    """Texts, each of which occurs once in the module, and what stands there instead."""
    tests: Mapping[str, tuple[str, ...]]
    """By promise: the files below ``tests`` in which a test fails then, or a test of a long one."""


MUTATIONS = (
    # ------------------------------------------------------------------ complete
    Mutation(
        "extended attributes are not captured",
        "core/worktree/scan/file_reader.py",
        (("return store_xattrs(read_xattrs(fs, where), sink.put)", "return None"),),
        {"P1": ("core/create/test_complete.py", "core/stateful/test_machine.py")},
    ),
    Mutation(
        "times are restored to the microsecond",
        "core/worktree/apply/stage.py",
        (
            (
                "self._fs.change_times(fd, entry.mtime_ns)",
                "self._fs.change_times(fd, entry.mtime_ns // 1000 * 1000)",
            ),
        ),
        {"P1": ("formats/test_frozen_stores.py",)},
    ),
    Mutation(
        "the change time is not in the stat key",
        "core/worktree/scan/scanner.py",
        (
            (
                "            and row.observations == self._packed\n",
                (
                    "            and [\n"
                    "                (*item[:4], *item[5:])\n"
                    "                for item in decode_observations(row.observations).values()\n"
                    "            ]\n"
                    "            == [(*item[:4], *item[5:]) for item in self._observations]\n"
                ),
            ),
        ),
        {"P1": ("core/create/test_change_detection.py",)},
    ),
    Mutation(
        "files that are mapped for writing are not read again",
        "core/worktree/scan/mapped_files.py",
        (("    if not inodes:\n", "    if inodes:\n"),),
        {"P1": ("core/create/test_mappings.py",)},
    ),
    Mutation(
        "an incomplete snapshot exits 0",
        "cli/commands/create.py",
        (("if result.complete else", "if result.complete or result.skipped else"),),
        {"P1": ("cli/test_create.py",)},
    ),
    # ------------------------------------------------------------------ destroys nothing
    Mutation(
        "what was left out of the present state is removed like all else",
        "core/ops/restore/plan.py",
        (
            (
                "if (old is not None and old.is_skipped) or (new is not None and new.is_skipped):",
                "if new is not None and new.is_skipped:",
            ),
        ),
        {
            "P2": (
                "core/create/test_left_out.py",
                "core/restore/test_places.py",
                "core/stateful/test_excluded_machine.py",
            )
        },
    ),
    Mutation(
        "the state before a restore is not kept",
        "core/ops/restore/attempt.py",
        (
            (
                "return capture.publish(",
                "return _publish_in_place(self._session, goal.snapshot, label) or (",
            ),
        ),
        {
            "P2": (
                "cli/test_restore.py",
                "core/create/test_complete.py",
                "core/restore/test_undo_is_whole.py",
                "core/stateful/test_machine.py",
            )
        },
    ),
    Mutation(
        "what others changed since the base is overwritten",
        "core/ops/restore/plan.py",
        (
            (
                "is_kept = theirs is not None and not others.overwrites\n",
                "is_kept = False\n",
            ),
        ),
        {"P2": ("core/restore/test_changes_by_others.py",)},
    ),
    # ------------------------------------------------------------------ all or nothing
    Mutation(
        "a committed restore is not finished by the next command",
        "core/ops/restore/recover.py",
        (
            (
                "        if commit is not None:\n            return Completion(",
                "        if commit is None:\n            return Completion(",
            ),
        ),
        {"P3": ("core/crash/test_kill_points.py", "core/crash/test_power_cuts.py")},
    ),
    Mutation(
        "what a restore moved aside stays in the root",
        "core/ops/restore/transaction.py",
        (
            (
                "        if target is None or not move_stage(",
                "        if target is not None and not move_stage(",
            ),
        ),
        {"P3": ("core/crash/test_black_box.py",), "P7": ("core/stateful/test_machine.py",)},
    ),
    Mutation(
        "a restore that fails is not rolled back",
        "core/ops/restore/transaction.py",
        (("            applier.roll_back()\n", ""),),
        {
            "P3": (
                "core/crash/test_errors.py",
                "test_regressions.py",
                "core/restore/test_files_in_use.py",
            )
        },
    ),
    Mutation(
        "the journal is not synced",
        "core/ops/restore/transaction.py",
        (
            (
                'self._session.root.write("journal", JOURNAL, journal))',
                'self._session.root.write("journal", JOURNAL, journal, durable=False))',
            ),
        ),
        {"P3": ("core/crash/test_power_cuts.py",)},
    ),
    # ------------------------------------------------------------------ durable
    Mutation(
        "a Mac leaves what is synced in the memory of the drive",
        "core/fs/darwin.py",
        (
            (
                "            self._libc.fcntl(fd, F_FULLFSYNC)\n",
                "            self._libc.fsync(fd)\n",
            ),
        ),
        {"P4": ("core/file_systems/test_volumes_of_a_mac.py",)},
    ),
    Mutation(
        "a pack is not synced",
        "core/store/packs.py",
        (
            (
                "            self._fs.sync_data(self._fd)\n            if not self._has",
                "            if not self._has",
            ),
        ),
        {"P4": ("core/crash/test_power_cuts.py",)},
    ),
    Mutation(
        "a snapshot is published before its packs are written",
        "core/store/writer.py",
        (
            ("        self.flush()\n        record = record", "        record = record"),
            (
                "        self.flush()\n        if self.objects_added:\n",
                "        if self.objects_added:\n",
            ),
            (
                "log.promote(self._slot.pending_path, root_id, name)\n",
                "log.promote(self._slot.pending_path, root_id, name)\n        self.flush()\n",
            ),
        ),
        {"P4": ("core/crash/test_power_cuts.py",)},
    ),
    # ------------------------------------------------------------------ verified
    Mutation(
        "the id of a snapshot is not checked",
        "core/store/snapshots.py",
        (
            (
                "if expected is not None and snapshot_id(payload) != expected:",
                "if expected is not None and not payload:",
            ),
        ),
        {"P5": ("core/damage/test_store.py", "core/damage/test_every_file.py")},
    ),
    Mutation(
        "the content of an object is not compared with its id",
        "core/codec/pack.py",
        (
            (
                "if part[0] != entry.kind or prefixed_id(part) != entry.id:",
                "if part[0] != entry.kind:",
            ),
        ),
        {
            "P5": (
                "cli/test_store.py",
                "core/unit/codec/test_pack.py",
                "core/unit/store/test_packs.py",
            ),
            "P9": ("core/damage/test_hostile_store.py",),
        },
    ),
    Mutation(
        "the checksum of a sealed file is not checked",
        "core/codec/envelope.py",
        (
            (
                "if checksum(body, CHECKSUM_SIZE) != data[start + length :]:",
                "if len(data) < start + length:",
            ),
        ),
        {"P5": ("core/unit/codec/test_fuzz.py",)},
    ),
    Mutation(
        "a damaged index part is believed",
        "core/store/index.py",
        (("if size <= VERIFIED_SIZE_MAX:", "if size > VERIFIED_SIZE_MAX:"),),
        {"P5": ("core/unit/store/test_index.py",)},
    ),
    Mutation(
        "a writer relies on objects whose pack is gone",
        "core/store/packs.py",
        (
            (
                "                return False\n            self._tables[entry.block] = table",
                "                return True\n            self._tables[entry.block] = table",
            ),
        ),
        {"P5": ("core/damage/test_healing.py",)},
    ),
    # ------------------------------------------------------------------ concurrent
    Mutation(
        "a writer publishes although collections overtook it",
        "core/store/writer.py",
        (
            (
                "read_state(self._fs, self._store.layout).epoch > self._epoch + 1:",
                "read_state(self._fs, self._store.layout).epoch > self._epoch + 1000:",
            ),
        ),
        {"P6": ("core/concurrency/test_during_collection.py",)},
    ),
    Mutation(
        "a writer that goes on with a pack writes over what others appended",
        "core/store/packs.py",
        (
            (
                "return cls(fs, layout, pack_id, fd, size, covered), tables",
                "return cls(fs, layout, pack_id, fd, HEADER_SIZE, covered), tables",
            ),
        ),
        {"P6": ("core/concurrency/test_many_processes.py",)},
    ),
    Mutation(
        "a pack is rewritten without the objects that are needed of it",
        "core/store/maintenance/collection.py",
        (("writer.copy(self._needed_of(packs), going)", "writer.copy((), going)"),),
        {"P6": ("core/crash/test_kill_points.py",)},
    ),
    # ------------------------------------------------------------------ bounded
    Mutation(
        "automatic snapshots are never pruned",
        "core/ops/maintenance/space.py",
        (
            (
                "prunes = has_limit or number % period(len(names)) == 0",
                "prunes = False",
            ),
        ),
        {"P7": ("core/space/test_auto_maintenance.py",)},
    ),
    Mutation(
        "what a killed writer left is not swept",
        "core/store/writer.py",
        (
            (
                (
                    "        sweep_temporary(self._fs, self._store.layout.temporary)\n"
                    "        sweep_pending("
                ),
                "        sweep_pending(",
            ),
        ),
        {"P7": ("core/crash/test_kill_points.py",)},
    ),
    Mutation(
        "what a killed export left stays for ever",
        "core/ops/restore/export.py",
        (
            (
                "            if record is not None:\n                with record:\n",
                "            if record is None:\n                with record:\n",
            ),
        ),
        {"P7": ("core/crash/test_exports.py", "core/restore/test_killed_exports.py")},
    ),
    Mutation(
        "the reserve is not given back on a full disk",
        "core/store/reserve.py",
        (
            (
                "if not is_full(error) or not self._remove():",
                "if not is_full(error) or self._layout is not None:",
            ),
        ),
        {"P7": ("core/space/test_collection_on_full_disk.py",)},
    ),
    Mutation(
        "a full disk is not told from other errors",
        "core/fs/os_errors.py",
        (("return error.errno in _FULL", "return error.errno in ()"),),
        {"P7": ("core/space/test_full_disks.py",)},
    ),
    # ------------------------------------------------------------------ fast
    Mutation(
        "index parts are never merged",
        "core/store/index.py",
        (("if len(self.parts) <= PARTS_MAX:", "if len(self.parts) >= 0:"),),
        {"P8": ("core/unit/store/test_index.py",)},
    ),
    Mutation(
        "the stat cache is not used",
        "core/ops/capture.py",
        (
            (
                "usable_cache(session, self._listing) if not request.fresh else None",
                "None",
            ),
        ),
        {"P8": ("core/costs/test_system_calls.py",)},
    ),
    Mutation(
        "a watcher is not told of writes to files",
        "core/fs/notifier.py",
        (("CHANGED = 0x2 | 0x4 | CLOSED", "CHANGED = 0x4"),),
        {"P8": ("core/watch/test_changes_seen.py",)},
    ),
    Mutation(
        "a watcher is believed for ever",
        "core/ops/known_changes.py",
        (
            (
                "not 0 <= session.context.clock_ns() - note.walked_ns < WALK_EVERY_NS",
                "session.context.clock_ns() < 0",
            ),
        ),
        {"P8": ("core/watch/test_whole_walks.py",)},
    ),
    Mutation(
        "a watcher answers processes that see another tree",
        "core/ops/known_changes.py",
        (
            (
                "pack((stat.st_dev, stat.st_ino, *processes.view()))",
                'pack((b"the same for all",))',
            ),
        ),
        {"P8": ("cli/test_watched_commands.py",)},
    ),
    # ------------------------------------------------------------------ safe
    Mutation(
        "a stored name may be the directory above",
        "core/model/treepath.py",
        (
            ('and name not in {b".", b".."}', 'and name != b"."'),
            ('        and b".." not in names\n', ""),
        ),
        {
            "P9": (
                "core/damage/test_hostile_store.py",
                "core/unit/codec/test_tree.py",
                "core/unit/model/test_treepath.py",
            )
        },
    ),
    Mutation(
        "a name in an archive may lead upwards",
        "core/ops/history/archive_tree.py",
        (
            (
                'if not path or b".." in names or not treepath.are_valid_names(names):',
                "if not path:",
            ),
        ),
        {"P9": ("core/archive/test_import.py",)},
    ),
    Mutation(
        "links in a path are followed",
        "core/fs/posix.py",
        (("ALWAYS = os.O_CLOEXEC | os.O_NOFOLLOW", "ALWAYS = os.O_CLOEXEC"),),
        {"P9": ("core/restore/test_swapped_links.py",)},
    ),
    Mutation(
        "a block may claim any size",
        "core/codec/compress.py",
        (("if not 0 <= raw_size <= BLOCK_RAW_SIZE_MAX:", "if raw_size < 0:"),),
        {"P9": ("core/unit/codec/test_bombs.py",)},
    ),
    Mutation(
        "a decoder lets an error of another kind out",
        "core/codec/fields.py",
        (("except InvalidArgument as error:", "except KeyError as error:"),),
        {
            "P9": (
                "core/unit/codec/test_fuzz.py::test_the_invalid_argument_of_a_path_never_leaves_a_decoder",
            )
        },
    ),
    # ------------------------------------------------------------------ honest
    Mutation(
        "an error in JSON lacks its exit code",
        "cli/failure.py",
        (('        "exit_code": failure.exit_code,\n', ""),),
        {"P10": ("cli/test_failure.py",)},
    ),
    Mutation(
        "a repair does not say what could not be repaired",
        "cli/checks.py",
        (("    yield from _lost_lines(result.partial)\n", ""),),
        {"P10": ("cli/test_forms.py",)},
    ),
    Mutation(
        "damage has the exit code of a full disk",
        "cli/failure.py",
        (("    DAMAGED = 7\n    NO_SPACE = 8\n", "    NO_SPACE = 7\n    DAMAGED = 8\n"),),
        {"P10": ("docs/test_pages.py::test_every_error_code_is_documented_with_its_exit_code",)},
    ),
    # ------------------------------------------------------------------ readable
    Mutation(
        "a record is written without reading it back",
        "core/codec/envelope.py",
        (("            read_back = self.decode(payload)\n", "            read_back = record\n"),),
        {"P11": ("core/unit/codec/test_formats.py",)},
    ),
    Mutation(
        "a damaged snapshot ends a listing",
        "core/store/snapshots.py",
        (
            (
                "            except Corrupt as error:\n                if cache",
                "            except UnsupportedFormat as error:\n                if cache",
            ),
        ),
        {"P11": ("core/damage/test_snapshots.py", "core/damage/test_store.py")},
    ),
    Mutation(
        "a damaged snapshot stops the garbage collection",
        "core/store/maintenance/collection.py",
        (
            (
                "self._damaged[snapshot_name.id] = None\n                yield from",
                "raise\n                yield from",
            ),
        ),
        {"P11": ("core/damage/test_snapshots.py", "core/damage/test_store.py")},
    ),
)
