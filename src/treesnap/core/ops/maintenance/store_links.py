"""The links that moves of a store leave at its old places, so that these still lead to it.

Each leads there directly, however often a store was moved. The store lists them in its file
``links``, which is a hint: a name in it is followed only if a link of this user is there, which
leads to the store.

A store can also be moved to where such a link is, as when it comes home. One exchange cannot do
that: the link that it leaves at the other end would lead to itself. So the store is moved to a name
beside first, the links are led to the one at the new place, and then both are exchanged there. At
every moment each name leads to the store.

A move that is killed on this way leaves the store at the name beside, and links that lead there.
They are listed like all others, the one at the new place too, so the next move to anywhere leads
them on. What it leaves at the name beside is one more link, which goes when the store comes home.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from treesnap.core.fs.base import FileSystem, ReadingFileSystem
from treesnap.core.fs.durable import opened_file, read_file, replace_file
from treesnap.core.fs.real_path import path_beside
from treesnap.core.model.errors import ErrorCode, Refused, TreesnapError, quoted
from treesnap.core.store.layout import Layout

_SIZE_MAX = 1 << 20
_LINKS_MAX = 1000
_FLAGS = os.O_RDONLY | os.O_DIRECTORY


def links_left(fs: ReadingFileSystem, layout: Layout) -> list[str]:
    """Returns where moves have left links, as a store says; none where that cannot be read."""
    import json

    try:
        links = json.loads(read_file(fs, layout.links, _SIZE_MAX))["links"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
    is_list = isinstance(links, list) and all(isinstance(link, str) for link in links)
    return [link for link in links if os.path.isabs(link) and "\0" not in link] if is_list else []


def note_links(fs: FileSystem, layout: Layout, links: Iterable[str]) -> None:
    """Lists the links that lead to a store in it, durably. The gate of the store is closed."""
    import json

    newest = list(dict.fromkeys(links))[-_LINKS_MAX:]
    content = json.dumps({"links": newest}, indent=2).encode() + b"\n"
    replace_file(fs, layout.links, content, temporary=layout.temporary)


def leads_to(path: str, store: str) -> bool:
    """Returns whether a link of this user is at a path, and leads to a store by its real path."""
    return own_link_target(path) is not None and os.path.realpath(path) == store


def own_link_target(path: str) -> str | None:
    """Returns where a link of this user leads, or None for anything else at a path.

    What the link of another user says proves nothing, and they can change it at any moment.
    """
    try:
        return os.readlink(path) if os.lstat(path).st_uid == os.geteuid() else None
    except OSError:
        return None


def place_before(path: str, store: str) -> str:
    """Returns where a store is moved at first: beside a link to it, which the path may be."""
    if not leads_to(path, store):
        return path
    place = _beside(path)
    is_free = not os.path.lexists(place) or _is_remains(place)
    if not (is_free or place == store or leads_to(place, store)):
        raise Refused(
            f"{quoted(place)}, where the store would be for a moment, exists: rename or remove it",
            code=ErrorCode.TARGET_NOT_EMPTY,
            path=place,
        )
    return place


def make_way(fs: FileSystem, store: str, place: str, path: str) -> None:
    """Removes a link to a store from the name beside its new place.

    A move that was killed left it. Links may lead to the store by it, so these are led there
    directly before. The caller has closed the gate of the store.
    """
    if place in (store, path) or not leads_to(place, store):
        return
    for link in dict.fromkeys([path, *links_left(fs, Layout(store))]):
        if link != place and leads_to(link, store):
            _lead(fs, link, store)
    fs.unlink(place)


def _beside(path: str) -> str:
    return path_beside(path, ".moving")


def _is_remains(path: str) -> bool:
    """Returns whether a move left this name beside a link that was killed: it leads to itself."""
    return own_link_target(path) == path


def arrive(fs: FileSystem, old: str, place: str, path: str) -> None:
    """Ends the move of a store that is at ``place`` by now: at ``path``, to which all links lead.

    The caller has closed the gate of the store. When it raises, every name leads to the store,
    which is where it was before the move, or at ``place``.
    """
    links = [*dict.fromkeys([*links_left(fs, Layout(place)), old])]
    links = [link for link in links if link not in (place, path) and leads_to(link, place)]
    if place == path:
        for link in links:
            with suppress(OSError, TreesnapError):  # it leads there over another one
                _lead(fs, link, path)
    else:
        note_links(fs, Layout(place), [*links, path])
        try:
            _lead(fs, path, place)
            for link in links:
                _lead_if_possible(fs, link, path, place)
            _exchange(fs, place, path)
        except BaseException:
            if old != place and not os.path.islink(place):
                _go_back(fs, old, place, path)
            raise
    for name in (path, *links):  # of this move, and of others that were killed
        if _is_remains(rest := _beside(name)):
            with suppress(OSError):
                fs.unlink(rest)
    note_links(fs, Layout(path), links)


def _lead_if_possible(fs: FileSystem, link: str, path: str, place: str) -> None:
    """Leads a link to a path; raises only where it would lead nowhere otherwise."""
    try:
        _lead(fs, link, path)
    except (OSError, TreesnapError):
        if os.readlink(link) == place:
            raise


def _go_back(fs: FileSystem, old: str, place: str, path: str) -> None:
    """Moves a store from ``place`` to where it was, while each name leads to it."""
    with suppress(OSError, TreesnapError):
        _lead(fs, old, place)
        _lead(fs, path, old)
        _exchange(fs, place, old)
        fs.unlink(place)


def _exchange(fs: FileSystem, one: str, other: str) -> None:
    """Exchanges two names, durably."""
    with (
        opened_file(fs, os.path.dirname(one), _FLAGS) as here,
        opened_file(fs, os.path.dirname(other), _FLAGS) as there,
    ):
        names = os.path.basename(one), os.path.basename(other)
        fs.exchange(*names, source_dir_fd=here, target_dir_fd=there)
        fs.sync(there)
        fs.sync(here)


def _lead(fs: FileSystem, link: str, target: str) -> None:
    """Makes a link lead to a target directly, atomically and durably.

    Raises Refused where another process has put something else in its place by then.
    """
    above, name = os.path.split(link)
    made = os.path.basename(path_beside(link, ".treesnap-link", prefix="."))
    with opened_file(fs, above, _FLAGS) as fd:
        if os.path.islink(os.path.join(above, made)):  # of a move that was killed
            fs.unlink(made, dir_fd=fd)
        seen = os.readlink(link)
        if seen == target:
            return
        fs.make_symlink(os.fsencode(target), os.fsencode(made), dir_fd=fd)
        try:
            fs.exchange(made, name, source_dir_fd=fd, target_dir_fd=fd)
            try:
                is_right = fs.read_link(os.fsencode(made), dir_fd=fd) == os.fsencode(seen)
            except OSError:  # it is not a link
                is_right = False
            if not is_right:
                fs.exchange(made, name, source_dir_fd=fd, target_dir_fd=fd)
                raise Refused(
                    f"{quoted(link)} was replaced by another process",
                    code=ErrorCode.TARGET_NOT_EMPTY,
                    path=link,
                )
        finally:
            if os.path.islink(os.path.join(above, made)):
                fs.unlink(made, dir_fd=fd)
        fs.sync(fd)
