"""Directories in which names that are spelled otherwise are one name.

exfat and vfat fold case, a Mac's file systems fold how accents are written too, or that alone. They
keep a name as it was given, and find it in any spelling. So a name that a look finds may be
spelled otherwise; a listing of the directory shows how.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain

from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.durable import opened_file
from treesnap.core.fs.real_path import OPEN_DIRECTORY
from treesnap.core.model import treepath
from treesnap.core.model.errors import ErrorCode, Refused, quoted

_PROBE = b"probe"
"""A directory of names that were tried, which goes with the staging directory."""
_FILLERS = (0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFFA0)
"""Joiners and fillers, which are not marks of format."""
_VARIANTS = tuple(
    range(first, last + 1)
    for first, last in ((0x180B, 0x180D), (0x180F, 0x180F), (0xFE00, 0xFE0F), (0xE0100, 0xE01EF))
)
"""Selectors of variants: of Mongolian letters, of emoji, and of Chinese characters."""


def other_spellings(name: bytes) -> list[bytes]:
    """Returns a name in other cases and, with accents, in both normal forms; not as it is.

    Some letters have three cases, and some have two only where a file system maps one letter to
    one, as exfat and HFS+ do.
    """
    text = _text(name)
    forms = {text.swapcase()}
    if not name.isascii():
        forms |= {_composed(text), _decomposed(text), text.upper(), text.lower()}
        forms.add("".join(map(_other_case, text)))
    return [form.encode("utf-8", "surrogateescape") for form in forms - {text}]


def has_accents(name: bytes) -> bool:
    """Returns whether a name has another normal form, or two."""
    if name.isascii():
        return False
    text = _text(name)
    return len({text, _composed(text), _decomposed(text)}) > 1


def is_folding(fs: FileSystem, fd: int, name: bytes) -> bool:
    """Returns whether a directory has a name, which is there, in another spelling as well.

    Costs one look, or up to six for a name beyond ASCII. Two files on another file system may look
    the same, if they are links of each other. Without letters in the name nothing can be told.
    """
    own = None
    for other in other_spellings(name):
        with suppress(OSError):
            status = fs.lstat(other, dir_fd=fd)
            own = own or fs.lstat(name, dir_fd=fd)
            if os.path.samestat(status, own):
                return True
    return False


def spelled(fs: FileSystem, fd: int, name: bytes) -> bytes | None:
    """Returns another name in a directory that a look at this one finds, or None.

    Where several may be it, as it folds case alone or accents alone, the file itself tells. So it
    does where none looks like it, because no two file systems fold alike.
    """
    names = [os.fsencode(text) for text in fs.list_names(fd)]
    if name in names:
        return None
    own_form = folded(name)
    others = [other for other in names if folded(other) == own_form]
    if not others:
        return _of_same_file(fs, fd, name, names)
    if len(others) > 1:
        with suppress(FileNotFoundError):
            own = fs.lstat(name, dir_fd=fd)
            others.sort(key=lambda other: not os.path.samestat(own, fs.lstat(other, dir_fd=fd)))
    return others[0]


def _of_same_file(fs: FileSystem, fd: int, name: bytes, names: Iterable[bytes]) -> bytes | None:
    """Returns the first of the names of a directory that leads where another one does, or None."""
    with suppress(FileNotFoundError):
        own = fs.lstat(name, dir_fd=fd)
        for other in names:
            with suppress(FileNotFoundError):
                if os.path.samestat(own, fs.lstat(other, dir_fd=fd)):
                    return other
    return None


def folded(name: bytes) -> str:
    """Returns what all spellings of a name have in common, as far as can be known.

    Marks that are not seen count for nothing: HFS+ and ext4 ignore them.
    """
    text = _text(name)
    if name.isascii():
        return text.lower()
    if not (text.isprintable() and _unseen().isdisjoint(text)):  # else three times as long
        from unicodedata import category

        text = "".join(each for each in text if each not in _unseen() and category(each) != "Cf")
    return _decomposed(_decomposed(text).casefold())


def with_one_name(paths: Iterable[bytes]) -> list[list[bytes]]:
    """Returns groups of two or more paths of one directory that differ in spelling alone."""
    groups: dict[tuple[bytes, str], list[bytes]] = {}
    for path in paths:
        directory, name = treepath.split(path)
        groups.setdefault((directory, folded(name)), []).append(path)
    return [group for group in groups.values() if len(group) > 1]


def one_name_of(fs: FileSystem, stage_fd: int, names: Sequence[bytes]) -> list[bytes]:
    """Returns two of some names that are one where a staging directory is, or nothing.

    Tries it below that. Some of the names may be one, and others not.
    """
    with suppress(FileExistsError):
        fs.make_directory(_PROBE, dir_fd=stage_fd)
    made: dict[tuple[int, int], bytes] = {}
    with opened_file(fs, _PROBE, OPEN_DIRECTORY, stage_fd) as fd, suppress(FileNotFoundError):
        for name in names:
            if name is names[-1]:  # it need not be made
                status = fs.lstat(name, dir_fd=fd)
            else:
                with opened_file(fs, name, os.O_WRONLY | os.O_CREAT, fd) as made_fd:
                    status = fs.fstat(made_fd)
            other = made.setdefault((status.st_dev, status.st_ino), name)
            if other is not name:
                return [other, name]
    return []


def collision(one: bytes, other: bytes) -> Refused:
    """Returns the error for two paths that cannot both be there."""
    names = [quoted(path) for path in (one, other)]
    if _text(one).casefold() != _text(other).casefold():  # they may look the same
        names = [ascii(_text(path)) for path in (one, other)]
    return Refused(
        f"{names[0]} and {names[1]} are one name on this file system, which does not tell these "
        "spellings apart",
        code=ErrorCode.NAMES_COLLIDE,
        path=other,
    )


@cache
def _unseen() -> frozenset[str]:
    """Returns the marks that are not seen and are not marks of format; few names need them."""
    return frozenset(map(chr, chain(_FILLERS, *_VARIANTS)))


def _other_case(letter: str) -> str:
    other = letter.swapcase()
    return other if len(other) == 1 else letter


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")  # as such file systems do, in any locale


def _composed(text: str) -> str:
    from unicodedata import normalize  # few names need it

    return normalize("NFC", text)


def _decomposed(text: str) -> str:
    from unicodedata import normalize

    return normalize("NFD", text)
