"""The hook that compiles the module in C when a wheel is built."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from hatchling.bridge.app import Application

from treesnap.core.fs import native

pytestmark = pytest.mark.sampled(10)

PROJECT = Path(__file__).parents[2]
IS_FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
MODULE = f"_native{sysconfig.get_config_var('EXT_SUFFIX') if IS_FREE_THREADED else '.abi3.so'}"


@pytest.fixture
def build(tmp_path, monkeypatch):
    """Runs the hook for a copy of the sources; returns what it tells the builder."""
    for part in ("native", "docs/man", "docs/reference"):
        shutil.copytree(PROJECT / part, tmp_path / part)
    (tmp_path / "src/treesnap/core").mkdir(parents=True)
    place = tmp_path / "native/hatch_build.py"
    spec = importlib.util.spec_from_file_location("hatch_build", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def run(wish: str | None = None, compiler: str | None = None, version: str = "standard"):
        for variable, value in (("TREESNAP_NATIVE", wish), ("CC", compiler)):
            if value is None:
                monkeypatch.delenv(variable, raising=False)
            else:
                monkeypatch.setenv(variable, value)
        others = ({}, None, None, str(tmp_path / "dist"), "wheel", Application())
        hook = module.NativeBuildHook(str(tmp_path), *others)
        data = {"force_include": {}, "pure_python": True}
        hook.initialize(version, data)
        return data

    return run


PURE = {"force_include": {}, "pure_python": True}


def test_with_a_compiler_the_wheel_has_the_module_for_every_python(build, tmp_path):
    data = build()

    ((made, inside),) = data["force_include"].items()
    assert (inside, data["pure_python"]) == (f"treesnap/core/{MODULE}", False)
    assert data.get("infer_tag") or data["tag"].startswith("cp311-abi3-linux_")
    spec = importlib.util.spec_from_file_location("treesnap.core._native", made)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.INTERFACE == native.INTERFACE


def test_beside_editable_sources_it_lies_with_them(build, tmp_path):
    assert build(version="editable") == PURE
    assert [path.name for path in (tmp_path / "src/treesnap/core").iterdir()] == [MODULE]


@pytest.mark.parametrize("is_free_threaded", [False, True])
def test_the_stable_abi_is_asked_for_where_python_has_one(tmp_path, is_free_threaded):
    """What kind of Python it is, only a header says that ``Python.h`` includes."""
    (tmp_path / "pyconfig.h").write_text("#define Py_GIL_DISABLED 1\n" * is_free_threaded)
    (tmp_path / "Python.h").write_text(
        "#include <pyconfig.h>\n#ifdef Py_LIMITED_API\nstable_abi\n#endif\n"
    )
    words = [os.environ.get("CC", "cc"), "-E", "-P", f"-I{tmp_path}", PROJECT / "native/_native.c"]
    done = subprocess.run(words, check=True, capture_output=True, text=True)

    assert ("stable_abi" in done.stdout) != is_free_threaded


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_without_a_compiler_the_wheel_is_pure(build, compiler, capsys):
    assert build(compiler=compiler) == PURE
    assert "optional" in "".join(capsys.readouterr())


def test_where_it_is_required_a_build_without_it_fails(build):
    with pytest.raises(RuntimeError, match="no-such-compiler"):
        build("require", "no-such-compiler")


def test_where_it_is_not_wanted_nothing_is_compiled(build):
    assert build("no", "no-such-compiler") == PURE


def test_the_man_pages_are_made(build, tmp_path):
    (tmp_path / "docs/man/snap.1").unlink(missing_ok=True)

    build("no")

    assert ".SS \\fBsnap create" in (tmp_path / "docs/man/snap.1").read_text()
    assert (tmp_path / "docs/man/treesnap.1").exists()


def test_another_word_for_whether_it_is_wanted_is_refused(build):
    with pytest.raises(RuntimeError, match="auto, require or no"):
        build("maybe")


def test_a_python_that_is_too_old_is_named(build, monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 13))

    with pytest.raises(RuntimeError, match=r"needs Python 3\.11 or newer, and this is 3\.10\.13"):
        build()


def test_elsewhere_than_on_linux_the_wheel_is_pure(build, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")

    assert build() == PURE
