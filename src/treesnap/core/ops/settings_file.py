"""The TOML files that settings are in: read, written, and what is wrong with one."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from treesnap.core.fs.base import FileSystem, ReadingFileSystem
from treesnap.core.fs.durable import read_file, replace_file, sync_directory, unlink_if_present
from treesnap.core.model.errors import ErrorCode, InvalidArgument, quoted
from treesnap.core.model.quantities import size_text
from treesnap.core.model.type_names import Any

_FILE_SIZE_MAX = 1 << 16


def load(fs: ReadingFileSystem, path: str) -> str:
    """Returns a file's text, empty when there is none; does not block on a pipe in its place."""
    try:
        if not stat.S_ISREG(fs.lstat(path).st_mode):
            raise invalid(path, "it is not a regular file")
        data = read_file(fs, path, _FILE_SIZE_MAX)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise invalid(path, error.strerror or str(error)) from error
    if len(data) > _FILE_SIZE_MAX:
        raise invalid(path, f"it is larger than {size_text(_FILE_SIZE_MAX)}")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise invalid(path, f"it is not UTF-8: {error.reason}") from error


def save(fs: FileSystem, path: str, text: str, *, temporary: str) -> None:
    """Puts a text into a file, or removes the file for a text without words, durably.

    Raises InvalidArgument for a text that :func:`load` would refuse, before it is written.
    """
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(
            f"The settings in {quoted(path)} cannot hold what is not UTF-8", path=path
        ) from None
    if len(data) > _FILE_SIZE_MAX:
        raise InvalidArgument(
            f"The settings in {quoted(path)} would be larger than {size_text(_FILE_SIZE_MAX)}",
            path=path,
        )
    if text.strip():
        replace_file(fs, path, data, temporary=temporary)
    elif unlink_if_present(fs, path):
        sync_directory(fs, os.path.dirname(path))


def document_of(fs: ReadingFileSystem, path: str) -> dict[str, Any]:
    """Returns the content of a file; empty if there is none."""
    text = load(fs, path)
    if not text:
        return {}
    import tomllib

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number may have too many digits, too
        raise invalid(path, str(error)) from error


def flat(document: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Returns the values by key, those of a table behind its name and a point."""
    rows: list[tuple[str, Any]] = []
    for name, value in document.items():
        if "." in name:
            rows.append((f'"{name}"', value))  # no setting has such a name
        elif isinstance(value, dict):
            rows += [(f"{name}.{inner}", item) for inner, item in value.items()]
        else:
            rows.append((name, value))
    return rows


@contextmanager
def named(path: str, name: str) -> Iterator[None]:
    """Says in errors which setting of a file they are about."""
    try:
        yield
    except InvalidArgument as error:
        raise invalid(path, f"{name}: {error.message}") from error
    except ValueError as error:
        raise invalid(path, f"{name} has too many digits") from error


def invalid(path: str, why: str) -> InvalidArgument:
    """Returns the error for a file that cannot be used."""
    return InvalidArgument(
        f"The settings in {quoted(path)} cannot be used: {why}",
        code=ErrorCode.INVALID_CONFIG,
        path=path,
    )
