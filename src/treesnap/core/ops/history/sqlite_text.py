"""Databases of SQLite as text: the statements that would make what a restored one holds.

Run as a program, it prints those of databases, with what is in the log or the journal beside each.
A database may be a stranger's. It is opened in a process of its own with limits, from a copy in a
private directory; no extension is loaded, and views and triggers are printed, not run.
"""

from __future__ import annotations

import os
import sys

from treesnap.core.fs.durable import opened_file, write_all
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.model.entries import DATABASE_HEADER
from treesnap.core.model.type_names import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3

_LOG_HEADERS = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")
_JOURNAL_MAGIC = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
DATABASE, TEXT, FAILURE = "file", "text", "failure"
"""Names in the directory of one database: what is printed, and why it is not."""
TOO_LONG = b"too long"
_MEMORY_SIZE_MAX = (1 << 30) * (2 if "t" in sys.abiflags else 1)
"""The allocator of a free-threaded Python reserves 1 GiB at its start, which counts as used."""
_FILE_SIZE_MAX = 1 << 30
_PROCESSOR_TIME_MAX_S = 30
"""Ends a process whose reader was killed, and so cannot end it."""


def is_database(data: bytes | None) -> bool:
    """Returns whether the content of a file is a database."""
    return data is not None and data.startswith(DATABASE_HEADER)


def is_log(path: bytes, *sides: bytes | None) -> bool:
    """Returns whether a file is the log of a database, by its name and the content it has."""
    contents = [data for data in sides if data]
    return path.endswith(b"-wal") and all(data.startswith(_LOG_HEADERS) for data in contents)


def names_a_file(journal: bytes) -> bool:
    """Returns whether a journal is one of several, and so ends with the name of a file.

    SQLite reads that file, and removes it after it has rolled back, whatever it is: a stranger's
    journal would remove a file of the user.
    """
    return journal.endswith(_JOURNAL_MAGIC)


class _TooLong(Exception):
    """More would be printed than the caller takes."""


def _statements(path: str, size_max: int) -> bytes:
    """Returns a database as text; raises sqlite3.Error for what is damaged, _TooLong."""
    import sqlite3
    from contextlib import closing

    lines, size = [], 0
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as database,
        closing(sqlite3.connect(":memory:")) as another,
    ):
        database.execute("PRAGMA trusted_schema = OFF")
        database.execute("PRAGMA cell_size_check = ON")
        database.text_factory = lambda raw: raw.decode(errors="backslashreplace")
        if _has_text_with_nul(database):
            _quote_nul(database, another)
        for statement in database.iterdump():
            line = f"{statement}\n".encode(errors="backslashreplace")
            size += len(line)
            if size > size_max:
                raise _TooLong
            lines.append(line)
    return b"".join(lines)


def _has_text_with_nul(database: sqlite3.Connection) -> bool:
    """Returns whether a text in a table holds a NUL: the ``quote`` of SQLite ends a text there."""
    tables = database.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE TABLE%'"
    ).fetchall()
    for (table,) in tables:
        columns = database.execute("SELECT name FROM pragma_table_info(?)", (table,)).fetchall()
        found = " OR ".join(
            f"(typeof({name}) = 'text' AND instr({name}, char(0)))"
            for name in (_identifier(column) for (column,) in columns)
        )
        rows = f"SELECT 1 FROM {_identifier(table)} WHERE {found or 0} LIMIT 1"  # noqa: S608 - quoted
        if database.execute(rows).fetchone() is not None:
            return True
    return False


def _identifier(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _quote_nul(database: sqlite3.Connection, another: sqlite3.Connection) -> None:
    """Replaces ``quote`` by one that writes a NUL as SQL; another connection quotes the rest."""

    def quote(value: object) -> str:
        if isinstance(value, str) and "\0" in value:
            parts = (part.replace("'", "''") for part in value.split("\0"))
            return "'" + "'||char(0)||'".join(parts) + "'"
        quoted: str = another.execute("SELECT quote(?)", (value,)).fetchone()[0]
        return quoted

    database.create_function("quote", 1, quote, deterministic=True)


def _print_one(directory: str, size_max: int) -> int:
    """Prints the database in a directory into a file beside it; returns the exit code."""
    import resource
    import sqlite3

    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_SIZE_MAX, _MEMORY_SIZE_MAX))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_SIZE_MAX, _FILE_SIZE_MAX))
    resource.setrlimit(resource.RLIMIT_CPU, (_PROCESSOR_TIME_MAX_S, _PROCESSOR_TIME_MAX_S))
    try:
        name, said = TEXT, _statements(os.path.join(directory, DATABASE), size_max)
    except _TooLong:
        name, said = FAILURE, TOO_LONG
    except sqlite3.Error as error:
        name, said = FAILURE, f"{error}".encode(errors="backslashreplace")
    fs = LocalFileSystem()
    path = os.path.join(directory, name)
    with opened_file(fs, path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
        write_all(fs, fd, said)
    return 0 if name == TEXT else 1


def _serve() -> None:
    """Prints the databases that standard input names, and says how each ended.

    Each is opened by a process of its own, which is forked and so need not start Python: what a
    stranger's database does to it reaches no other one. It has none of the pipes of this process.
    """
    import sqlite3  # noqa: F401 - loaded once, and not by each process

    for line in sys.stdin.buffer:
        place, size_max = line.decode().split()
        directory = os.fsdecode(bytes.fromhex(place))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                nothing = os.open(os.devnull, os.O_RDWR)
                for number in range(3):
                    os.dup2(nothing, number)
                code = _print_one(directory, int(size_max))
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        sys.stdout.buffer.write(b"%d\n" % code)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _serve()
