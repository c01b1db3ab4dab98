"""The check of `tox -e types`, on small packages: it finds what has no type, and tells its gaps."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.sampled(3)

CHECK = "structure.typed.run_type_completeness"
TIMEOUT_S = 300
MODULES = {
    "typed": "class Known:\n    def __init__(self) -> None:\n        self.count: int = len('a')\n",
    "untyped": "class Unknown:\n    def __init__(self) -> None:\n        self.count = len('a')\n",
    "needy": "import not_installed\n\nclass Other(not_installed.Base):\n    pass\n",
}


@pytest.fixture
def checked(tmp_path):
    """Checks a package of some of the modules above; returns the exit code and what is printed."""

    def check(*modules: str) -> tuple[int, str]:
        package = tmp_path / "sample_package"
        package.mkdir()
        for name in ("__init__.py", "py.typed"):
            (package / name).touch()
        for name in modules:
            (package / f"{name}.py").write_text(MODULES[name])
        path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
        result = subprocess.run(
            [sys.executable, "-m", CHECK, "sample_package"],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        return result.returncode, result.stdout

    return check


def test_a_package_with_types_passes(checked):
    assert checked("typed")[0] == 0


def test_an_attribute_without_a_type_is_found(checked):
    code, told = checked("typed", "untyped")

    assert code == 1
    assert "sample_package.untyped.Unknown.count" in told
    assert "Known.count" not in told.replace("Unknown.count", "")


def test_what_needs_an_absent_package_is_not_judged_and_named(checked):
    code, told = checked("typed", "needy")

    assert code == 0
    assert "not judged: sample_package.needy, because not_installed is not installed" in told
