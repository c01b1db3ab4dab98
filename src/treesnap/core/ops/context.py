"""Where root and store are, how operations reach them, and which roots are refused.

The only module that reads the environment, and that imports platformdirs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress

from treesnap.core.fs import FOLLOWS_XDG
from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.durable import is_there
from treesnap.core.fs.real_path import Link, resolved
from treesnap.core.model.errors import (
    ErrorCode,
    InvalidArgument,
    NotFound,
    OperationFailed,
    Refused,
    StoreMissing,
    quoted,
)
from treesnap.core.model.events import Monitor, NullMonitor
from treesnap.core.model.ids import root_id
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.path_budget import PathBudget
from treesnap.core.model.treepath import PathLike
from treesnap.core.model.type_names import TYPE_CHECKING, Literal, Protocol
from treesnap.core.store.layout import Layout

if TYPE_CHECKING:  # a command that asks no watcher needs none of it
    from treesnap.core.codec.reader import TreeCache
    from treesnap.core.codec.watch import Answer, Mark
    from treesnap.core.store.roots import Root
    from treesnap.core.store.snapshots import RecordCache
    from treesnap.core.store.store import Store

MARKS_VARIABLE = "SNAP_STEP"
"""Names the commands that a process belongs to, each by its mark; nested ones are all named."""
WAIT_DEFAULT_S = 30.0
"""How long an operation waits for another one in the same root."""
_GIT_FILE_SIZE_MAX = 4096
SYSTEM_DIRECTORIES = frozenset(
    {
        "/",
        "/bin",
        "/boot",
        "/dev",
        "/etc",
        "/home",
        "/lib",
        "/lib64",
        "/opt",
        "/proc",
        "/root",
        "/run",
        "/sbin",
        "/srv",
        "/sys",
        "/tmp",  # noqa: S108 - a root to refuse, nothing is written there
        "/usr",
        "/var",
        "/Applications",
        "/Library",
        "/System",
        "/Users",
    }
)


class ChangeSource(Protocol):
    """Something that knows what changed."""

    def answer(self, since: Mark | None) -> Answer | None:
        """Returns what changed since a mark, or None if it cannot tell."""


class Context(NamedTuple):
    """A root and its store, by path, and what operations reach them through.

    Holds no lock and no open file, so that it survives ``fork`` and threads.
    """

    root: str
    """Real path of the root."""
    given_root: str
    """The root as it was given, of which the last component may be a link."""
    store_path: str
    """Path of the store's directory."""
    fs: FileSystem
    monitor: Monitor
    clock_ns: Callable[[], int]
    wait_s: float
    """How long an operation waits for another one in the same root."""
    watcher: ChangeSource | None = None
    """Knows what changed in the root, or None; then another process may."""
    tree_cache: TreeCache | None = None
    """Beside a watcher of this process: directories that walks read or stored."""
    record_cache: RecordCache | None = None
    """Beside it as well: snapshots that were looked at."""
    may_start_processes: bool = False
    """Whether work that need not be waited for may go on in a process of its own. The command
    says so; a program that uses the library does not expect one."""
    is_attended: bool = False
    """Whether a person is there to answer a question, so that it comes before the work."""
    root_links: tuple[Link, ...] = ()
    """The symbolic links that led to the root."""
    is_root_named: bool = True
    """Whether the caller named the root. Otherwise the store says that this directory, above the
    one that was named, is a root."""
    reach: frozenset[str] | None = None
    """Real paths of the roots of which a reference may name a snapshot, or None for those of the
    whole store. To all others a reference leads as to what does not exist."""

    def has_root(self) -> bool:
        """Returns whether anything is at the path of the root.

        Raises OperationFailed where that cannot be seen, as on a mount whose server is gone: such
        a root is not absent, and nothing may be made, given up or said as if it were.
        """
        return is_root_there(self.fs, self.root)


class Session(NamedTuple):
    """A store that is open, and the root in it that an operation is about."""

    context: Context
    store: Store
    root: Root

    @property
    def fs(self) -> FileSystem:
        """The file system of the context."""
        return self.context.fs

    @property
    def monitor(self) -> Monitor:
        """The monitor of the context."""
        return self.context.monitor

    def reaches(self, root_id: str) -> bool:
        """Returns whether a reference may name a snapshot of a root."""
        reach = self.context.reach
        if reach is None or root_id == self.root.id:
            return True
        return any(self.store.root(os.fsencode(path)).id == root_id for path in reach)

    def path_budget(self) -> PathBudget:
        """Returns a new budget for the paths that an operation lists."""
        return PathBudget(self.store.allocated_bytes)


def system_clock_ns() -> int:
    """Returns the time; raises OperationFailed if Python cannot represent the system's time."""
    try:
        return time.time_ns()
    except OverflowError as error:
        raise OperationFailed(
            "The clock of this machine is past the year 2262: set it to the right time first"
        ) from error


def context_at(
    root: PathLike,
    store_path: str,
    *,
    monitor: Monitor | None = None,
    wait_s: float = WAIT_DEFAULT_S,
    fs: FileSystem | None = None,
    clock_ns: Callable[[], int] = system_clock_ns,
    watcher: ChangeSource | None = None,
) -> Context:
    """Returns the context of a root and a store; raises InvalidArgument for an invalid path."""
    root_text = os.fsdecode(root)
    if not root_text or "\0" in root_text:
        raise InvalidArgument("The root must be a path", path=root_text)
    root_text = absolute(root_text)
    above, name = os.path.split(os.path.abspath(root_text))
    root_path, root_links = resolved(root_text)
    return Context(
        root=root_path,
        given_root=os.path.join(os.path.realpath(above), name),
        store_path=os.path.abspath(absolute(store_path)),
        fs=fs or _file_system(os.path.abspath(absolute(store_path))),
        monitor=monitor or NullMonitor(),
        clock_ns=clock_ns,
        wait_s=wait_s,
        watcher=watcher,
        root_links=root_links,
    )


def _file_system(store_path: str) -> FileSystem:
    """Returns the local file system; for the superuser, one that keeps a store its owner's."""
    if os.geteuid() != 0:
        from treesnap.core.fs.local import LocalFileSystem

        return LocalFileSystem()
    from treesnap.core.fs.local import for_store

    return for_store(store_path)


_USER_DIRECTORIES = {
    "config": ("XDG_CONFIG_HOME", ".config"),
    "data": ("XDG_DATA_HOME", ".local/share"),
    "state": ("XDG_STATE_HOME", ".local/state"),
}
"""The variable that names the directory of each kind, and where it is without it."""


def default_store_path() -> str:
    """Returns ``$SNAP_STORE``, else the ``treesnap`` directory among the user's data.

    Raises OperationFailed where there is neither: a sandboxed process may have no home directory.
    """
    given = os.environ.get("SNAP_STORE")
    if given:
        return os.path.abspath(absolute(given))
    path = _user_directory("data")
    if path is None:
        raise OperationFailed(
            "There is no home directory to keep a store in, and SNAP_STORE is not set",
            code=ErrorCode.STORE_UNAVAILABLE,
        )
    return path


def user_state_directory() -> str:
    """Returns where treesnap keeps what it did for this user outside of stores.

    Raises OperationFailed where there is no home directory.
    """
    path = _user_directory("state")
    if path is None:
        raise OperationFailed(
            "There is no home directory to keep notes in, and XDG_STATE_HOME is not set",
            code=ErrorCode.STATE_UNAVAILABLE,
        )
    return path


def home_directory() -> str | None:
    """Returns the home directory of the user, or None where there is none."""
    path = os.path.expanduser("~") if os.environ.get("HOME", "~") else ""
    return path if os.path.isabs(path) else None


def user_config_path() -> str | None:
    """Returns the file of this user's own settings; None where there is no home directory."""
    path = _user_directory("config")
    return os.path.join(path, "config.toml") if path is not None else None


def _user_directory(kind: Literal["config", "data", "state"]) -> str | None:
    """Returns where a user's files of one kind lie; None where there is no home directory.

    What ``platformdirs`` says. To import it takes a tenth of the time of a small command, so it is
    asked only where the environment does not tell; see the XDG Base Directory Specification.
    """
    variable, below_home = _USER_DIRECTORIES[kind]
    directory = os.environ.get(variable, "") if FOLLOWS_XDG else ""
    home = os.environ.get("HOME", "")
    if os.path.isabs(directory):
        path = os.path.join(directory, "treesnap")
    elif FOLLOWS_XDG and os.path.isabs(home) and not directory.strip():
        path = os.path.join(home, below_home, "treesnap")
    else:
        import platformdirs

        try:
            path = getattr(platformdirs, f"user_{kind}_dir")("treesnap", appauthor=False)
        except RuntimeError:  # neither HOME nor an entry in the table of users
            return None
    return path if os.path.isabs(path) else None


def _is_default_store(store_path: str) -> bool:
    """Returns whether a store is the default one, and $SNAP_STORE is not set."""
    if is_store_given():
        return False
    try:
        return store_path == default_store_path()
    except OperationFailed:
        return False


def is_store_given() -> bool:
    """Returns whether the environment says where the store is."""
    return bool(os.environ.get("SNAP_STORE"))


def safe_directories_given() -> list[str]:
    """Returns the directories whose owners this user trusts, from ``$SNAP_SAFE_DIRECTORIES``.

    They stand between colons; each stands for all that lies below it, too. One that is not
    absolute names nothing.
    """
    words = os.environ.get("SNAP_SAFE_DIRECTORIES", "").split(os.pathsep)
    return list(filter(None, words))


def sudo_caller_id() -> int | None:
    """Returns the user that called this command by sudo(8), or None."""
    caller = os.environ.get("SUDO_UID", "")
    return int(caller) if caller.isascii() and caller.isdigit() else None


def is_disabled_for_agents() -> bool:
    """Returns whether the user has switched off all that is captured for agents."""
    return bool(os.environ.get("SNAP_DISABLE"))


def require_store(store_path: str) -> None:
    """Raises StoreMissing where no part of a store exists: most likely the path was mistyped.

    Does not raise for one that cannot be looked at: opening it reports that.
    """
    layout = Layout(store_path)
    for path in (layout.format, layout.snapshots):
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return
        return
    raise StoreMissing(f"There is no store at {quoted(store_path)}", path=store_path)


def require_root(context: Context) -> None:
    """Raises NotFound or Refused for a root that is not a directory and has no history.

    Most likely the path was mistyped. A root with a history passes where it was deleted, or
    cannot be looked at; without one that is OperationFailed.
    """
    if os.path.isdir(context.root):
        return
    from treesnap.core.fs.os_errors import translating_os_errors
    from treesnap.core.store.roots import Root

    layout = Layout(context.store_path)
    with translating_os_errors("look at the root"):
        root, given = (
            Root(context.fs, layout, os.fsencode(path))
            for path in (context.root, context.given_root)
        )
        if _has_history(layout, root):
            return
        if _has_history(layout, given):
            raise replaced_by_link(context)
        if not context.has_root():
            moved_to = root.moved_to
            where = f": the root was moved to {quoted(moved_to)}" if moved_to is not None else ""
            raise no_directory(context.root, where)
    raise Refused(
        f"The root {quoted(context.root)} is not a directory",
        code=ErrorCode.NOT_A_DIRECTORY,
        path=context.root,
    )


def _has_history(layout: Layout, root: Root) -> bool:
    return root.is_registered() or os.path.lexists(layout.root_snapshots(root.id))


def is_root_there(fs: FileSystem, path: str) -> bool:
    """Returns whether anything is at the path of a root; raises as :meth:`Context.has_root`."""
    try:
        return is_there(fs, path)
    except OSError as error:
        raise OperationFailed(
            f"The root {quoted(path)} cannot be looked at: {error.strerror or error}",
            code=ErrorCode.NOT_PERMITTED if isinstance(error, PermissionError) else None,
            path=path,
            errno=error.errno,
        ) from error


def no_directory(path: str, where: str = "") -> NotFound:
    """Returns the error for a root that is not there; ``where`` says where it is instead."""
    message = f"There is no directory {quoted(path)}{where}"
    return NotFound(message, code=ErrorCode.ROOT_NOT_FOUND, path=path)


def replaced_by_link(context: Context) -> Refused:
    """Returns the error for a symbolic link in the place of a root with a history."""
    return Refused(
        f"The root {quoted(context.given_root)} is no longer a directory, but a link to "
        f"{quoted(context.root)}",
        code=ErrorCode.NOT_A_DIRECTORY,
        path=context.given_root,
    )


def current_directory() -> str:
    """Returns the current directory; raises NotFound when it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError as error:
        raise NotFound(
            "The current directory does not exist any more",
            code=ErrorCode.CURRENT_DIRECTORY_GONE,
        ) from error
    except OSError as error:
        raise OperationFailed(
            f"The current directory cannot be looked at: {error.strerror}", errno=error.errno
        ) from error


def absolute(path: str) -> str:
    """Returns an absolute path; a relative one starts at the current directory.

    Does not normalise it. Raises NotFound if the current directory was removed.
    """
    return path if os.path.isabs(path) else os.path.join(current_directory(), path)


def find_root(directory: str, store_path: str, markers: tuple[str, ...] = ()) -> str:
    """Returns the nearest registered root that holds a directory, else the directory itself.

    A directory with one of the ``markers`` in it counts as well, unless it is a dangerous root. A
    working tree that shares its repository with others is a root of its own, wherever it lies. A
    root that was joined to one above is passed over.
    """
    layout = Layout(store_path)
    start = os.path.realpath(directory)
    candidate = start
    while True:
        if _is_root(layout, candidate, counts_joined=False) or is_worktree(candidate):
            return candidate
        is_marked = any(os.path.lexists(os.path.join(candidate, marker)) for marker in markers)
        if is_marked and _danger(candidate, store_path) is None:
            return candidate
        parent = os.path.dirname(candidate)
        if parent == candidate:
            return start
        candidate = parent


def is_worktree(directory: str) -> bool:
    """Returns whether a directory is a working tree of a repository that lies elsewhere.

    As ``git worktree add`` makes them; a submodule has a repository of its own.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(os.path.join(directory, ".git"), flags)
    except OSError:  # most have none
        return False
    try:
        word, _, path = os.read(fd, _GIT_FILE_SIZE_MAX).partition(b" ")
    except OSError:  # it is the repository itself
        return False
    finally:
        os.close(fd)
    repository = os.path.join(os.fsencode(directory), path.rstrip(b"\n"))
    return word == b"gitdir:" and os.path.isfile(os.path.join(repository, b"commondir"))


def worktree_of(directory: str) -> str | None:
    """Returns the nearest such working tree that holds a directory, or None."""
    candidate = os.path.realpath(directory)
    while not os.path.isdir(os.path.join(candidate, ".git")):
        if is_worktree(candidate):
            return candidate
        parent = os.path.dirname(candidate)
        if parent == candidate:
            break
        candidate = parent
    return None


def is_root_of(store_path: str, directory: str) -> bool:
    """Returns whether a store knows a root at a real path, and a directory is there."""
    return os.path.isdir(directory) and _is_root(Layout(store_path), directory, counts_joined=True)


def _is_root(layout: Layout, directory: str, *, counts_joined: bool) -> bool:
    """Returns whether a store knows a root at a path, or one that was moved there."""
    identity = root_id(os.fsencode(directory))
    traces = [layout.root_file(identity, "root"), layout.root_at_path(identity)]
    with suppress(OSError):  # on a mount whose server is gone, a root is known by its path
        stat = os.lstat(directory)
        traces.append(layout.root_at_inode(stat.st_dev, stat.st_ino))
    if not any(map(os.path.lexists, traces)):
        return False
    from treesnap.core.fs.local import LocalFileSystem
    from treesnap.core.store.roots import Root, find_moved

    fs, path = LocalFileSystem(), os.fsencode(directory)
    root = Root(fs, layout, path)
    if root.record is not None or (root.id == identity and root.is_registered()):
        return counts_joined or not root.is_joined
    moved = find_moved(fs, layout, path)
    return moved is not None and moved.is_certain


def check_root(context: Context, *, force: bool) -> None:
    """Raises NotFound without a root, and Refused for a dangerous one without ``force``.

    Raises OperationFailed for one that cannot be looked at.
    """
    if not context.has_root():
        raise no_directory(context.root)
    if not force:
        refuse_dangerous(context.root, context.store_path)


def check_store(store_path: str) -> None:
    """Raises OperationFailed where a store cannot be written to or made. Writes nothing."""
    existing = store_path
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    layout = Layout(store_path)
    written = (
        layout.packs,
        layout.index,
        layout.pending,
        layout.snapshots,
        layout.roots,
        layout.temporary,
    )
    places = [path for path in written if os.path.lexists(path)] or [existing]
    if not all(os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK) for path in places):
        raise OperationFailed(
            f"The store {quoted(store_path)} cannot be written to", path=store_path
        )


def refuse_dangerous(root: str, store_path: str) -> None:
    """Raises Refused for a root whose capture or restore is most likely a mistake."""
    _refuse_dangerous(root, store_path, "root")


def refuse_dangerous_source(directory: str, store_path: str) -> None:
    """Raises Refused for a directory that is imported, as for a root that is captured."""
    _refuse_dangerous(directory, store_path, "directory")


def _refuse_dangerous(directory: str, store_path: str, what: str) -> None:
    danger = _danger(directory, store_path)
    if danger is not None:
        raise Refused(f"The {what} {quoted(directory)} {danger}", path=directory)


def _danger(root: str, store_path: str) -> str | None:
    store, _ = resolved(store_path)
    if root in SYSTEM_DIRECTORIES:
        return "is a system directory"
    if root == os.path.realpath(os.path.expanduser("~")):
        return "is your home directory"
    if root == store or root.startswith(store + os.sep):
        return "is the store or lies inside it"
    if root == os.path.dirname(store) and _is_default_store(store_path):
        return "is the directory that holds the default store"
    return None


def store_identities(context: Context) -> frozenset[tuple[int, int]]:
    """Returns device and inode of the store, and of each link that is a name of it.

    Of the links that the path of the store goes through, these are the ones that lead to the store
    itself, not to a directory above it. Empty while there is no store.
    """
    store, links = resolved(context.store_path)
    names = [link.path for link in links if os.path.realpath(link.path) == store]
    identities = set[tuple[int, int]]()
    for path in (store, *names):
        with suppress(OSError):
            stat = context.fs.lstat(path)
            identities.add((stat.st_dev, stat.st_ino))
    return frozenset(identities)


def own_marks() -> list[str]:
    """Returns the marks of the commands that this process belongs to, from the outermost on."""
    return os.environ.get(MARKS_VARIABLE, "").split()
