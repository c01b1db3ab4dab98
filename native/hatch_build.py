"""Makes the man pages when a wheel is built, and compiles the module in C where that is possible.

``TREESNAP_NATIVE`` in the environment says whether it is: ``auto`` (the default) builds it where a
compiler and the headers of Python are, ``require`` fails where they are not, ``no`` leaves it out.
"""

from __future__ import annotations

import os
import runpy
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VARIABLE = "TREESNAP_NATIVE"
PYTHON_MIN = (3, 11)
FLAGS = ("-O2", "-fPIC", "-shared", "-pthread", "-Wall")


class NativeBuildHook(BuildHookInterface):
    """Adds the compiled module to a wheel, or puts it beside the sources of an editable one.

    The man pages are made in any case: the wheel installs them from where they are made.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles; raises RuntimeError where the module is required and cannot be built.

        Refuses a Python that is too old: pip before 23.1 looks at what sources require before it
        looks at the Python, and would name a package of which that one has no version.
        """
        if sys.version_info < PYTHON_MIN:
            found = ".".join(map(str, sys.version_info[:3]))
            raise RuntimeError(f"treesnap needs Python 3.11 or newer, and this is {found}")
        root = Path(self.root)
        runpy.run_path(str(root / "docs/man/make_man_page.py"), run_name="__main__")
        wish = os.environ.get(VARIABLE, "auto")
        if wish not in {"auto", "require", "no"}:
            raise RuntimeError(f"{VARIABLE} is {wish!r}, and may be auto, require or no")
        if wish == "no":
            return
        is_free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
        suffix = sysconfig.get_config_var("EXT_SUFFIX") if is_free_threaded else ".abi3.so"
        place = "src/treesnap/core" if version == "editable" else "build"
        target = root / place / f"_native{suffix}"
        problem = _compile(root / "native/_native.c", target)
        if problem and wish == "require":
            raise RuntimeError(f"The module in C cannot be built: {problem}")
        if problem:
            self.app.display_warning(f"Without the module in C, which is optional: {problem}")
            return
        if version == "editable":
            return
        build_data["force_include"][str(target)] = f"treesnap/core/{target.name}"
        build_data["pure_python"] = False
        if is_free_threaded:
            build_data["infer_tag"] = True
        else:
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"cp311-abi3-{platform}"


def _compile(source: Path, target: Path) -> str:
    """Compiles a source file; returns what is in the way, or nothing."""
    if sys.platform != "linux":
        return f"it is written for Linux, and this is {sys.platform}"
    include = sysconfig.get_path("include")
    if not Path(include, "Python.h").exists():
        return "the headers of Python are not installed"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    target.parent.mkdir(exist_ok=True)
    made = target.with_suffix(f".{os.getpid()}")
    command = [*compiler, *FLAGS, f"-I{include}", str(source), "-o", str(made)]
    try:
        result = subprocess.run(  # noqa: S603 - the compiler that this Python was built with
            command, capture_output=True, text=True, check=False
        )
    except OSError as error:
        return f"{compiler[0]}: {error.strerror}"
    if result.returncode != 0:
        made.unlink(missing_ok=True)
        return result.stderr.strip() or f"{compiler[0]} failed"
    made.replace(target)  # a process that has the old one goes on with it
    return ""
