"""How much an installation takes: python -m benchmarks.install_size [REQUIREMENT].

Installs the checkout, or what a requirement of pip says, into an empty environment of the Python
that runs this, and prints the size of what each distribution brought, largest first. Bytecode is
not counted.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import venv
from importlib.metadata import Distribution, distributions
from pathlib import Path

PROJECT = Path(__file__).parents[1]


def size_bytes_of(distribution: Distribution) -> int:
    """Returns the size of the files that a distribution brought."""
    files = (Path(str(item.locate())) for item in distribution.files or ())
    return sum(path.stat().st_size for path in files if path.suffix != ".pyc" and path.is_file())


def main() -> None:
    """Prints a line for each distribution, and the sum."""
    parser = argparse.ArgumentParser(prog="install_size", description=__doc__)
    parser.add_argument("requirement", nargs="?", default=str(PROJECT))
    requirement = parser.parse_args().requirement
    with tempfile.TemporaryDirectory() as directory:
        venv.create(directory)
        python = Path(directory) / "bin" / "python"
        install = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q"]
        subprocess.run([*install, "--no-compile", requirement], check=True)
        (packages,) = Path(directory).glob("lib/python*/site-packages")
        found = {item.name: size_bytes_of(item) for item in distributions(path=[str(packages)])}
    for name, size_bytes in sorted(found.items(), key=lambda item: -item[1]):
        print(f"{size_bytes / 1e6:7.2f} MB  {name}")
    print(f"{sum(found.values()) / 1e6:7.2f} MB  in {len(found)} distributions")


if __name__ == "__main__":
    main()
