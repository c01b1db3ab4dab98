"""Installs hooks into the settings of hosts, and takes them out again.

In order, under one lock of the user: look at all files and decide what each will hold; write down
how to get each old content back; replace the file. What is written down are the places of what was
inserted, and a hash of the whole. So a file that only we have changed gets its bytes back, without
a copy of settings that may hold secrets; of any other file only our entries are taken out. If a
crash comes in between, a note of a file that was not replaced does not fit and is not used.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from treesnap.agents.install.host_settings import (
    CONTRACTS,
    Form,
    HookEntry,
    entries,
    is_marked,
    line_of,
    paths_of,
    programs,
    settings_path,
)
from treesnap.agents.install.json_text import JsonError, JsonText, Path, at, without_spans
from treesnap.agents.install.settings_file import (
    HostFile,
    look,
    missing_directories,
    remove,
    remove_directories,
    replace,
    require_replaceable,
)
from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.durable import ensure_directories, read_file, replace_file
from treesnap.core.fs.os_errors import error_text, translating_os_errors
from treesnap.core.model.errors import ErrorCode, InvalidArgument, OperationFailed, quoted
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.store.lock import held

_NOTES_SIZE_MAX = 1 << 20
_HOOKS = "hooks"


class SettingsPlace(NamedTuple):
    """Where hooks are installed: for a user or for a project."""

    fs: FileSystem
    directory: str
    """The home directory, or the root of the project."""
    for_project: bool
    environ: Mapping[str, str]
    notes_directory: str
    """Where it is written down how to take hooks out again."""
    wait_s: float

    def path(self, host: str) -> str:
        """Returns the path of a host's settings, or of the directory of its scripts."""
        return settings_path(host, self.directory, self.environ, for_project=self.for_project)

    def look(self, path: str) -> HostFile:
        """Returns what is at a path that is to be changed; raises what :func:`look` raises."""
        return look(self.fs, path, project=self.directory if self.for_project else None)


class FileChange(NamedTuple):
    """What a file of a host held, and what it holds then; None if it is absent."""

    host: str
    path: str
    old: bytes | None
    new: bytes | None


class Note(NamedTuple):
    """How to get back what a file held."""

    digest: str = ""
    """Of the content that we wrote; else the file was changed since."""
    inserted: Sequence[Sequence[int]] = ()
    made: Sequence[Sequence[str | int]] = ()
    """Paths of the objects and lists that we made, and of other values."""
    is_new: bool = False
    """Whether there was no file."""
    directories: Sequence[str] = ()
    """Those that were made for it."""


class _Step(NamedTuple):
    change: FileChange
    found: HostFile
    note: Note | None


def install(
    place: SettingsPlace,
    hosts: Sequence[str],
    words: Sequence[str],
    *,
    is_strict: bool,
    makes_worktrees: bool | None = None,
    dry_run: bool,
) -> list[FileChange]:
    """Installs hooks that run ``words`` with ``hook HOST`` after them; returns all changes.

    ``makes_worktrees`` says whether also those that make working trees in the place of the host;
    None leaves that as it is. Replaces older entries of ours. Nothing is changed if anything cannot
    be. Raises InvalidArgument for settings that cannot be understood, with line and column, for
    words that are not UTF-8, and for a host that has no such hooks; OperationFailed, NotFound or
    Conflict for files that cannot be replaced; Refused for the superuser where another user
    controls what is written to; Busy.
    """
    without = [host for host in hosts if not CONTRACTS[host].worktree_events]
    if makes_worktrees and without:
        title = CONTRACTS[without[0]].title
        raise InvalidArgument(f"{title} has no hooks that make working trees")
    try:
        "".join(words).encode()
    except UnicodeEncodeError as error:
        message = f"A host cannot be told to run {quoted(words[0])}: that is not UTF-8"
        raise InvalidArgument(message) from error

    def steps(notes: Mapping[str, Note]) -> Iterator[_Step]:
        for host in hosts:
            path = place.path(host)
            contents = list(programs(host, path, words, is_strict=is_strict))
            for file, content in contents:
                current = place.look(file)
                if current.content is not None and not is_marked(current.content):
                    raise OperationFailed(
                        f"{quoted(file)} was not made by treesnap; nothing was changed", path=file
                    )
                yield _written(host, current, content, notes, Note())
            if not contents:
                current = place.look(path)
                has = makes_worktrees
                if has is None and current.content is not None:
                    has = has_worktree_hooks(parsed(path, current.content).value, host)
                rows = entries(host, words, is_strict=is_strict, makes_worktrees=bool(has))
                content, note = _merged(host, current, rows, notes.get(current.path))
                yield _written(host, current, content, notes, note)

    return _carry_out(place, steps, dry_run=dry_run)


def uninstall(place: SettingsPlace, hosts: Sequence[str], *, dry_run: bool) -> list[FileChange]:
    """Takes the hooks out again; returns all changes.

    A file that no other program has changed since gets its old bytes back, and is removed if it
    was not there. Raises what :func:`install` raises.
    """

    def steps(notes: Mapping[str, Note]) -> Iterator[_Step]:
        for host in hosts:
            for path in paths_of(host, place.path(host)):
                current = place.look(path)
                new = current.content
                if new is not None:
                    new = _without_hooks(host, current.path, new, notes.get(current.path))
                yield _Step(FileChange(host, current.path, current.content, new), current, None)

    return _carry_out(place, steps, dry_run=dry_run)


def own_lines(value: Any, host: str) -> Iterator[tuple[Path, str]]:
    """Yields path and line of each entry of ours in the settings of a host."""
    hooks = value.get(_HOOKS) if isinstance(value, dict) else None
    waiting: list[tuple[Path, Any]] = [((_HOOKS,), hooks)]
    while waiting:
        path, item = waiting.pop()
        line = line_of(item, host)
        if line is not None:
            yield path, line
        elif isinstance(item, dict | list):
            inner = item.items() if isinstance(item, dict) else enumerate(item)
            waiting += [((*path, key), part) for key, part in inner]


def has_worktree_hooks(value: Any, host: str) -> bool:
    """Returns whether settings hold entries of ours that make working trees."""
    events = CONTRACTS[host].worktree_events
    return any(path[1] in events for path, _ in own_lines(value, host) if len(path) > 1)


def holds_exactly(value: Any, host: str, entries: Sequence[HookEntry]) -> bool:
    """Returns whether settings hold these entries, and no other ones of ours."""
    lists = [(entry.value, at(value, entry.path)) for entry in entries]
    are_there = all(isinstance(items, list) and entry in items for entry, items in lists)
    return are_there and len(list(own_lines(value, host))) == len(entries)


def parsed(path: str, content: bytes) -> JsonText:
    """Returns the settings in a file; raises InvalidArgument with line and column."""
    try:
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            before = content[: error.start].decode("utf-8")
            raise JsonError("this is not UTF-8", before, len(before)) from None
        document = JsonText(text)
        if not isinstance(document.value, dict):
            raise JsonError("an object should be here", text, 0)
    except JsonError as error:
        raise _not_understood(path, str(error)) from error
    return document


def _carry_out(
    place: SettingsPlace, steps: Callable[[Mapping[str, Note]], Iterable[_Step]], *, dry_run: bool
) -> list[FileChange]:
    if dry_run:
        return [step.change for step in _checked(place, steps(_notes(place)))]
    lock = os.path.join(place.notes_directory, "lock")
    what = "The record of installed hooks"
    try:
        ensure_directories(place.fs, place.notes_directory)
    except OSError as error:
        raise OperationFailed(
            f"Nowhere to note which hooks are installed: {error_text(error)}; nothing was changed",
            code=ErrorCode.STATE_UNAVAILABLE,
            path=place.notes_directory,
            errno=error.errno,
        ) from error
    with (
        translating_os_errors("install or remove hooks"),
        held(place.fs, lock, operation="agent", what=what, wait_s=place.wait_s),
    ):
        notes = _notes(place)
        checked = _checked(place, steps(notes))
        for step in checked:
            _carry_out_step(place, step, notes)
    return [step.change for step in checked]


def _checked(place: SettingsPlace, steps: Iterable[_Step]) -> list[_Step]:
    listed = list(steps)
    for step in listed:
        if step.change.old != step.change.new:
            require_replaceable(step.found, place.directory)
    return listed


def _carry_out_step(place: SettingsPlace, step: _Step, notes: dict[str, Note]) -> None:
    path, (_, _, old, new) = step.found.path, step.change
    if new is None or step.note is None:
        note = notes.pop(path, None)
        made = note.directories if note is not None else ()
        if new is None:
            if old is not None:
                remove(place.fs, step.found)
            left = remove_directories(place.fs, made)
            for other, its in notes.items():  # of ours as well; they go with the last one
                above = [directory for directory in left if other.startswith(directory + os.sep)]
                notes[other] = its._replace(directories=[*its.directories, *above])
        elif new != old:
            replace(place.fs, step.found, new, executable=False)
        if note is not None:
            _keep(place, notes)
    elif new != old:
        notes[path] = step.note
        _keep(place, notes)
        is_script = CONTRACTS[step.change.host].form is Form.SCRIPTS
        replace(place.fs, step.found, new, executable=is_script)


def _written(
    host: str, settings: HostFile, content: bytes, notes: Mapping[str, Note], note: Note
) -> _Step:
    old = notes.get(settings.path, Note())
    note = note._replace(
        digest=hashlib.sha256(content).hexdigest(),
        is_new=note.is_new or settings.content is None,
        directories=[*missing_directories(settings), *old.directories],
    )
    return _Step(FileChange(host, settings.path, settings.content, content), settings, note)


def _merged(
    host: str, settings: HostFile, hook_entries: Sequence[HookEntry], note: Note | None
) -> tuple[bytes, Note]:
    """Returns the settings with the entries, and a note of what was inserted."""
    base = None
    if settings.content is not None:
        if holds_exactly(parsed(settings.path, settings.content).value, host, hook_entries):
            return settings.content, Note()
        base = _without_hooks(host, settings.path, settings.content, note)
    text = parsed(settings.path, base or b"")
    made: list[Path] = []

    def put(path: Path, key: str, value: Any) -> None:
        text.insert(path, value, key)
        made.append((*path, key))

    for key, value in CONTRACTS[host].members.items():
        if key not in text.value:
            put((), key, value)
    for entry in hook_entries:
        above, last = entry.path[:-1], str(entry.path[-1])
        if above and _HOOKS not in text.value:
            put((), _HOOKS, {})
        owner = at(text.value, above)
        if not isinstance(owner, dict):
            raise _not_understood(settings.path, f"{_HOOKS!r} is not an object")
        if last not in owner:
            put(above, last, [entry.value])
        elif isinstance(owner[last], list):
            text.insert(entry.path, entry.value)
        else:
            raise _not_understood(
                settings.path, f"{'.'.join(map(str, entry.path))!r} is not a list"
            )
    return text.text.encode(), Note(inserted=text.inserted, made=made, is_new=base is None)


def _without_hooks(host: str, path: str, content: bytes, note: Note | None) -> bytes | None:
    """Returns a file without what we added, or None if there would be no file without us."""
    is_as_written = note is not None and hashlib.sha256(content).hexdigest() == note.digest
    if CONTRACTS[host].form in (Form.SCRIPTS, Form.PLUGIN):
        if note is not None and not is_as_written and is_marked(content):
            message = f"{quoted(path)} was changed after it was installed, so it is not removed"
            raise OperationFailed(message, path=path)
        return None if is_marked(content) else content
    if note is not None and is_as_written:
        return None if note.is_new else without_spans(content.decode(), note.inserted).encode()
    text = parsed(path, content)
    if note is None and next(own_lines(text.value, host), None) is None:
        return content
    _take_out(text, host, note.made if note is not None else None)
    is_ours = note.is_new if note is not None else os.path.basename(path).startswith("treesnap")
    rest = {key: value for key, value in text.value.items() if key != _HOOKS or value}
    return None if is_ours and rest in ({}, CONTRACTS[host].members) else text.text.encode()


def _take_out(text: JsonText, host: str, made: Sequence[Sequence[str | int]] | None) -> None:
    """Removes our entries, and the containers that are empty then.

    Only those containers that we made; all of them if that is not known.
    """
    ours = None if made is None else set(map(tuple, made))
    while (line := next(own_lines(text.value, host), None)) is not None:
        target, _ = line
        while len(target) > 1 and len(at(text.value, target[:-1])) == 1:
            above = target[:-1]
            if above[-1] == _HOOKS and len(above) > 1:  # of a group, which is nothing without it
                target = above[:-1]
            elif ours is None or above in ours:
                target = above
            else:
                break
        text.remove(target)
    for key, value in CONTRACTS[host].members.items():
        if (key,) in (ours or ()) and text.value.get(key) == value:
            text.remove((key,))


def _notes(place: SettingsPlace) -> dict[str, Note]:
    """Returns what is written down, by path, without what is damaged or of a later version.

    Raises OperationFailed where it cannot be read: it would be overwritten then.
    """
    path = os.path.join(place.notes_directory, "installed.json")
    listed: object = None
    with (
        translating_os_errors("read the record of installed hooks"),
        suppress(FileNotFoundError, ValueError),
    ):
        listed = json.loads(read_file(place.fs, path, _NOTES_SIZE_MAX))
    notes = {}
    for name, fields in listed.items() if isinstance(listed, dict) else ():
        if isinstance(fields, dict):
            values = {field: fields[field] for field in Note._fields if field in fields}
            notes[name] = Note(**values)
    return notes


def _keep(place: SettingsPlace, notes: Mapping[str, Note]) -> None:
    listed = {name: note._asdict() for name, note in notes.items()}
    path = os.path.join(place.notes_directory, "installed.json")
    content = json.dumps(listed, indent=1).encode()
    replace_file(place.fs, path, content, temporary=place.notes_directory)


def _not_understood(path: str, problem: str) -> InvalidArgument:
    message = f"{quoted(path)} cannot be understood: {problem}; nothing was changed"
    return InvalidArgument(message, code=ErrorCode.INVALID_SETTINGS, path=path)
