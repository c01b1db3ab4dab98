"""Databases of SQLite as text: the statements that would make what a restored one holds.

Run as a program, it prints those of a database, with what is in the log or the journal beside it.
The database may be a stranger's. It is opened in a process of its own with limits, from a copy in a
private directory; no extension is loaded, and views and triggers are printed, not run.
"""

from __future__ import annotations

import sys

HEADER = b"SQLite format 3\0"
"""What a database begins with, https://www.sqlite.org/fileformat.html."""
_LOG_HEADERS = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")
_MEMORY_SIZE_MAX = 1 << 30
_FILE_SIZE_MAX = 1 << 30


def is_database(data: bytes | None) -> bool:
    """Returns whether the content of a file is a database."""
    return data is not None and data.startswith(HEADER)


def is_log(path: bytes, *sides: bytes | None) -> bool:
    """Returns whether a file is the log of a database, by its name and the content it has."""
    contents = [data for data in sides if data]
    return path.endswith(b"-wal") and all(data.startswith(_LOG_HEADERS) for data in contents)


def print_statements(path: str) -> None:
    """Prints a database; raises sqlite3.Error for what is damaged or encrypted."""
    import resource
    import sqlite3
    from contextlib import closing

    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_SIZE_MAX, _MEMORY_SIZE_MAX))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_SIZE_MAX, _FILE_SIZE_MAX))
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA trusted_schema = OFF")
        database.execute("PRAGMA cell_size_check = ON")
        database.text_factory = lambda raw: raw.decode(errors="backslashreplace")
        for statement in database.iterdump():
            sys.stdout.buffer.write(f"{statement}\n".encode(errors="backslashreplace"))


if __name__ == "__main__":
    import sqlite3

    try:
        print_statements(sys.argv[1])
    except sqlite3.Error as _error:
        sys.exit(f"{_error}")
