"""Another system, for treesnap alone: what only Linux has is hidden from the modules of treesnap.

They see modules such as ``os`` without the names that typeshed gives to Linux and not to the other
system, another ``sys.platform``, no file below ``/proc``, and a C library without the calls of
Linux; that of a Mac is a double. The tests and all libraries see what is there. As a program, it
hides and then runs a text:
``python without_linux.py darwin "import treesnap.cli.main"``.
"""

from __future__ import annotations

import ast
import builtins
import errno
import importlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

SYSTEMS = ("darwin", "freebsd14", "win32")
MODULES = {
    "_signal": "signal",
    **{name: name for name in ("_socket", "errno", "fcntl", "mmap", "os", "posix", "resource")},
    **{name: name for name in ("select", "signal", "socket", "termios")},
}
"""The modules that are seen in part, and the file of typeshed that says what is in them."""
OF_UNIX = frozenset({"fcntl", "grp", "posix", "pwd", "resource", "termios"})
"""Modules that Windows has not."""
_LIBRARY_CALLS = frozenset({"fallocate64", "prctl", "renameat2", "statx", "syncfs"})
_TAKING_PATHS = frozenset(
    {"chmod", "listdir", "lstat", "mkdir", "open", "readlink", "scandir", "stat", "statvfs"}
)
_SHOWN_BY_LINUX = "/proc"


@cache
def hidden_names(module: str, system: str) -> frozenset[str]:
    """Returns the names that a module has on Linux and not on another system, by typeshed."""
    text = _stub(MODULES[module])
    return frozenset(_names(text.body, "linux")) - frozenset(_names(text.body, system))


@cache
def _stub(name: str) -> ast.Module:
    found = importlib.util.find_spec("mypy")
    assert found is not None
    assert found.origin is not None
    directory = Path(found.origin).parent / "typeshed" / "stdlib"
    for path in (directory / f"{name}.pyi", directory / name / "__init__.pyi"):
        if path.exists():
            return ast.parse(path.read_text(encoding="utf-8"))
    raise FileNotFoundError(name)


def _names(body: Sequence[ast.stmt], system: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.If):
            yield from _names(node.body if _holds(node.test, system) else node.orelse, system)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign):
            yield ast.unparse(node.target)
        elif isinstance(node, ast.Assign):
            yield from map(ast.unparse, node.targets)
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)


def _holds(test: ast.expr, system: str) -> bool:
    """Returns whether a condition of a stub holds on a system: names of sys stand in it alone."""
    seen = ModuleType("sys")
    vars(seen).update(platform=system, version_info=sys.version_info)
    return bool(eval(ast.unparse(test), {"sys": seen}))


class _Part(ModuleType):
    """A module without some of its names."""

    def __init__(self, whole: ModuleType, system: str) -> None:
        super().__init__(whole.__name__)
        own = object.__getattribute__(self, "__dict__")
        own["_whole"] = whole
        own["_hidden"] = (
            hidden_names(whole.__name__, system) if whole.__name__ in MODULES else frozenset()
        )
        own["_instead"] = _instead(whole, system)

    def __getattribute__(self, name: str) -> Any:
        own = object.__getattribute__(self, "__dict__")
        if name in own["_instead"]:
            return own["_instead"][name]
        if name in own["_hidden"]:
            raise AttributeError(f"no {name} in {own['_whole'].__name__} on this system", name=name)
        return getattr(own["_whole"], name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(object.__getattribute__(self, "__dict__")["_whole"], name, value)


def _instead(whole: ModuleType, system: str) -> dict[str, Any]:
    if whole.__name__ == "sys":
        return {"platform": system}
    if whole.__name__ == "ctypes":
        return {"CDLL": lambda *words, **options: _Library(whole.CDLL(*words, **options))}
    if whole.__name__ == "os":
        return {name: _elsewhere(getattr(whole, name)) for name in _TAKING_PATHS}
    return {}


class _Library:
    """A library without the calls of Linux."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        if name in _LIBRARY_CALLS:
            raise AttributeError(name)
        return getattr(self._library, name)


def _elsewhere(call: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a call that finds nothing below ``/proc``."""

    def called(*words: Any, **options: Any) -> Any:
        if words and isinstance(words[0], str | bytes | os.PathLike):
            path = os.fsdecode(words[0])
            if path == _SHOWN_BY_LINUX or path.startswith(f"{_SHOWN_BY_LINUX}/"):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return call(*words, **options)

    return called


class _Loader(importlib.machinery.SourceFileLoader):
    """Runs a module of treesnap so that its imports find the other system."""

    system = ""

    def exec_module(self, module: ModuleType) -> None:
        code = self.get_code(module.__name__)
        assert isinstance(code, CodeType)
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": self._imported}
        exec(code, vars(module))
        if module.__name__ == "treesnap.core.fs.darwin":
            vars(module)["LibSystem"] = _libc_of_a_mac

    def _imported(self, name: str, *rest: Any) -> Any:
        top = name.partition(".")[0]
        if self.system == "win32" and top in OF_UNIX:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        found = builtins.__import__(name, *rest)
        if top in MODULES or top in {"sys", "ctypes"}:
            return _part(top, self.system) if found.__name__ == top else found
        return found


def _libc_of_a_mac() -> Any:
    from libsystem import VOLUMES, SystemDouble

    return SystemDouble(VOLUMES["APFS"])


@cache
def _part(name: str, system: str) -> _Part:
    return _Part(importlib.import_module(name), system)


class _Finder(importlib.machinery.PathFinder):
    """Finds the modules of treesnap, but no compiled one."""

    loader: type[_Loader]

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname.partition(".")[0] != "treesnap":
            return None
        spec = super().find_spec(fullname, path, target)
        if spec is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            return None
        spec.loader = cls.loader(spec.loader.name, spec.loader.path)
        return spec


def hide(system: str) -> None:
    """Hides from all modules of treesnap that are imported from now on what a system has not."""
    loader = type("_SystemLoader", (_Loader,), {"system": system})
    sys.meta_path.insert(0, type("_SystemFinder", (_Finder,), {"loader": loader})())


if __name__ == "__main__":
    hide(sys.argv[1])
    exec(sys.argv[2], {"__name__": "__main__"})
