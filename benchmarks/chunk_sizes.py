"""Measure content-defined chunking: sizes, normalised chunking level, and two libraries.

The script makes its data sets below ``--data``, cuts every version of each with several schemes,
counts what a store would keep, prints Markdown tables and writes all figures as JSON:

    python benchmarks/chunk_sizes.py --data DIR --json OUT [--tree TREE]

Wheels and ``node_modules`` need a network; without one these sets are left out and the output says
so. Everything else is made from fixed seeds. Nothing here is imported by the package.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import io
import json
import os
import random
import shutil
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
import zipfile
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import zstandard
from blake3 import blake3
from pyfastcdc import FastCDC

KIB = 1024
MIB = 1024 * KIB
SMALL_FILE = 256 * KIB
"""Files up to this size are one chunk, whatever the scheme."""
DIGEST = 32
"""Bytes that one entry of a chunk list takes at least."""

Level = Literal[0, 1, 2, 3]
Cutter = Callable[[memoryview], list[int]]
"""Takes a buffer, gives the lengths of its chunks in order."""
Version = Iterable[bytes]
"""The contents of all files of one captured version."""


class UnavailableError(Exception):
    """A data set cannot be made here, for instance because there is no network."""


# --- Schemes -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scheme:
    """One way to cut a buffer."""

    name: str
    average: int
    cut: Cutter


def pyfastcdc_cutter(average: int, level: Level) -> Cutter:
    """Returns a cutter that uses ``pyfastcdc`` with min = average/4 and max = average*4."""
    chunker = FastCDC(
        average, min_size=average // 4, max_size=average * 4, normalized_chunking=level
    )
    return lambda buf: [chunk.length for chunk in chunker.cut_buf(buf)]


def fastcdc_cutter(average: int, module: str = "fastcdc.fastcdc_cy") -> Cutter:
    """Returns a cutter that uses the ``fastcdc`` library; its normalisation level is fixed."""
    entry = cast(
        "Callable[..., Iterable[Any]]",
        getattr(importlib.import_module(module), module.rpartition(".")[2]),
    )

    def cut(buf: memoryview) -> list[int]:
        return [int(chunk.length) for chunk in entry(buf, average // 4, average, average * 4)]

    return cut


def fixed_cutter(size: int) -> Cutter:
    """Returns a cutter for blocks of equal size, the reference without content-defined cuts."""
    return lambda buf: [min(size, len(buf) - start) for start in range(0, len(buf), size)]


def all_schemes() -> list[Scheme]:
    """Returns the schemes under test."""
    chosen: list[tuple[int, Level]] = [(32, 2), (64, 1), (64, 2), (128, 1), (128, 2), (256, 2)]
    schemes = [
        Scheme(f"pyfastcdc {kib}K NC{level}", kib * KIB, pyfastcdc_cutter(kib * KIB, level))
        for kib, level in chosen
    ]
    schemes.append(Scheme("fastcdc 128K", 128 * KIB, fastcdc_cutter(128 * KIB)))
    schemes.append(Scheme("fixed 128K", 128 * KIB, fixed_cutter(128 * KIB)))
    return schemes


# --- A store that only counts ------------------------------------------------------------------


class Compressor:
    """Compressed sizes at levels 1 and 3, remembered by digest so that no chunk is done twice."""

    def __init__(self) -> None:
        """Makes one compressor for each level."""
        self._levels = [zstandard.ZstdCompressor(level=level) for level in (1, 3)]
        self._known: dict[bytes, tuple[int, int]] = {}

    def sizes(self, digest: bytes, data: memoryview) -> tuple[int, int]:
        """Returns the sizes of the chunk after zstd levels 1 and 3, never above the raw size."""
        found = self._known.get(digest)
        if found is None:
            one, three = (min(len(data), len(c.compress(data))) for c in self._levels)
            found = self._known[digest] = (one, three)
        return found


@dataclass
class Tally:
    """What one scheme keeps for one data set."""

    scheme: Scheme
    seen: set[bytes] = field(default_factory=set)
    lists: set[bytes] = field(default_factory=set)
    list_bytes: int = 0
    references: int = 0
    seconds: float = 0.0
    cut_bytes: int = 0
    added: list[list[int]] = field(default_factory=list)

    def add_version(self, version: list[bytes], compressor: Compressor) -> None:
        """Cuts, hashes and counts all files of one version."""
        added = [0, 0, 0]
        for data in version:
            view = memoryview(data)
            start = 0
            digests = []
            for length in self._cut(view):
                chunk = view[start : start + length]
                start += length
                digest = blake3(chunk).digest()
                digests.append(digest)
                if digest in self.seen:
                    continue
                self.seen.add(digest)
                one, three = compressor.sizes(digest, chunk)
                added = [added[0] + length, added[1] + one, added[2] + three]
            self._count_list(digests)
        self.added.append(added)

    def _count_list(self, digests: list[bytes]) -> None:
        """Counts a whole list for every changed file: an upper bound, as a store splits them."""
        self.references += len(digests)
        identity = blake3(b"".join(digests)).digest()
        if len(digests) > 1 and identity not in self.lists:
            self.lists.add(identity)
            self.list_bytes += DIGEST * len(digests)

    def _cut(self, view: memoryview) -> list[int]:
        if len(view) <= SMALL_FILE:
            return [len(view)]
        begin = time.perf_counter()
        lengths = self.scheme.cut(view)
        self.seconds += time.perf_counter() - begin
        self.cut_bytes += len(view)
        return lengths

    def result(self) -> dict[str, Any]:
        """Returns the figures for the JSON file."""
        raw, one, three = (sum(column) for column in zip(*self.added, strict=True))
        return {
            "scheme": self.scheme.name,
            "unique_chunks": len(self.seen),
            "references": self.references,
            "list_bytes": self.list_bytes,
            "mean_chunk": raw // max(1, len(self.seen)),
            "unique_raw": raw,
            "unique_zstd1": one,
            "unique_zstd3": three,
            "added_raw": [row[0] for row in self.added],
            "added_zstd1": [row[1] for row in self.added],
            "added_zstd3": [row[2] for row in self.added],
            "cut_mb_per_s": self.cut_bytes / self.seconds / 1e6 if self.seconds else None,
        }


def measure(versions: Iterator[Version], schemes: list[Scheme]) -> dict[str, Any]:
    """Feeds all versions to all schemes, one version at a time, and returns the figures."""
    tallies = [Tally(scheme) for scheme in schemes]
    compressor = Compressor()
    whole: set[bytes] = set()
    whole_bytes = total = count = files = 0
    for files_of_version in versions:
        version = list(files_of_version)
        count += 1
        files += len(version)
        for data in version:
            digest = blake3(data).digest()
            total += len(data)
            whole_bytes += 0 if digest in whole else len(data)
            whole.add(digest)
        # Rotate the order, so that no scheme always meets a warm or a cold cache.
        for tally in tallies[count % len(tallies) :] + tallies[: count % len(tallies)]:
            tally.add_version(version, compressor)
    return {
        "versions": count,
        "files": files,
        "bytes": total,
        "unique_whole_files": whole_bytes,
        "schemes": [tally.result() for tally in tallies],
    }


# --- Data sets ---------------------------------------------------------------------------------


class Prose:
    """Text of made-up words with a Zipf-like frequency, from a fixed seed."""

    def __init__(self, rng: random.Random, size: int) -> None:
        """Makes ``size`` bytes of text to take slices from."""
        letters = "etaoinshrdlucmfwypvbgkqjxz"
        words = ["".join(rng.choices(letters, k=rng.randint(3, 10))) for _ in range(8000)]
        weights = [0.0]
        for rank in range(len(words)):
            weights.append(weights[-1] + 1 / (rank + 2))
        parts: list[str] = []
        done = 0
        while done < size:
            part = " ".join(rng.choices(words, cum_weights=weights[1:], k=100_000))
            parts.append(part)
            done += len(part) + 1
        self.text = " ".join(parts)[:size]
        self._rng = rng

    def take(self, length: int) -> str:
        """Returns a slice of the given length from a random place."""
        start = self._rng.randrange(len(self.text) - length)
        return self.text[start : start + length]


def sqlite_versions(folder: Path) -> Iterator[Version]:
    """Yields a 200 MB SQLite file, then the same file after each of 10 rounds of updates."""
    rng = random.Random("sqlite")
    prose = Prose(rng, 32 * MIB)
    path = folder / "app.db"
    path.unlink(missing_ok=True)
    db = sqlite3.connect(path)
    db.execute("PRAGMA synchronous = OFF")
    db.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, key TEXT, body TEXT)")

    def rows(count: int) -> Iterator[tuple[str, str]]:
        for _ in range(count):
            yield f"{rng.getrandbits(64):016x}", prose.take(rng.randint(400, 1400))

    insert = "INSERT INTO item (key, body) VALUES (?, ?)"
    db.executemany(insert, rows(200_000))
    db.execute("CREATE INDEX item_key ON item (key)")
    db.commit()
    yield [path.read_bytes()]
    for _ in range(10):
        for _ in range(200):
            changed = prose.take(rng.randint(400, 1400)), rng.randint(1, 200_000)
            db.execute("UPDATE item SET body = ? WHERE id = ?", changed)
        db.executemany(insert, rows(1000))
        db.commit()
        yield [path.read_bytes()]
    db.close()


def log_versions(folder: Path) -> Iterator[Version]:
    """Yields a log of 20 MB that grows by 5 MB in each of 9 further versions."""
    rng = random.Random("log")
    prose = Prose(rng, 8 * MIB)
    path = folder / "service.log"
    path.unlink(missing_ok=True)
    clock = 1_700_000_000.0
    for number in range(10):
        size = 0
        with path.open("a", encoding="ascii") as log:
            while size < (20_000_000 if number == 0 else 5_000_000):
                clock += rng.expovariate(5)
                level = rng.choices(("DEBUG", "INFO", "WARN", "ERROR"), (5, 80, 12, 3))[0]
                text = prose.take(rng.randint(30, 160))
                size += log.write(f"{clock:.3f} {level} worker-{rng.randint(1, 16)} {text}\n")
        yield [path.read_bytes()]


def float_layer(rng: random.Random, size: int) -> bytes:
    """Returns ``size`` bytes of float32 values with magnitudes between 1/128 and 1/32."""
    mask = int.from_bytes(b"\xff\xff\xff\x80" * (size // 4), "little")
    bias = int.from_bytes(b"\x00\x00\x00\x3c" * (size // 4), "little")
    noise = int.from_bytes(rng.randbytes(size), "little")
    return (noise & mask | bias).to_bytes(size, "little")


def checkpoint_versions() -> Iterator[Version]:
    """Yields a 200 MB model and 4 later versions, each with 6 of 24 layers changed wholly."""
    rng = random.Random("checkpoint")
    sizes = [rng.randrange(2_000_000, 14_600_000, 4) for _ in range(24)]
    sizes = [size * 200_000_000 // sum(sizes) // 4 * 4 for size in sizes]
    layers = [float_layer(rng, size) for size in sizes]
    header = json.dumps({f"layer.{n}.weight": size for n, size in enumerate(sizes)}).encode()
    yield [header + b"".join(layers)]
    for _ in range(4):
        for number in rng.sample(range(len(layers)), 6):
            layers[number] = float_layer(rng, sizes[number])
        yield [header + b"".join(layers)]


WHEEL_ROUNDS: tuple[tuple[str, ...], ...] = (
    ("numpy==1.26.0", "pillow==10.0.0", "cryptography==42.0.0", "django==4.2.10", "click==8.1.3"),
    ("numpy==1.26.4", "pillow==10.3.0", "cryptography==42.0.5", "django==4.2.11", "click==8.1.7"),
    ("numpy==2.0.0", "pillow==10.4.0", "cryptography==42.0.8", "django==4.2.13", "click==8.1.8"),
)


def fetch_wheels(folder: Path) -> list[list[Path]]:
    """Downloads the wheels of every round unless they are there; returns them round by round."""
    rounds: list[list[Path]] = []
    for number, specs in enumerate(WHEEL_ROUNDS):
        target = folder / f"round{number}"
        for spec in () if target.is_dir() else specs:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            command += ["--only-binary=:all:", "--dest", str(target), spec]
            run_quietly(command, folder)
        rounds.append(sorted(target.glob("*.whl")))
    if not all(rounds):
        raise UnavailableError("`pip download` gave no wheels")
    return rounds


def wheel_versions(folder: Path) -> Iterator[Version]:
    """Yields a wheel cache that gains newer versions of its packages in each round."""
    cache: list[bytes] = []
    for wheels in fetch_wheels(folder):
        cache += [wheel.read_bytes() for wheel in wheels]
        yield cache


def venv_versions(folder: Path) -> Iterator[Version]:
    """Yields the unpacked files of the wheels, each round replacing the one before."""
    for wheels in fetch_wheels(folder):
        files: list[bytes] = []
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                files += [archive.read(name) for name in archive.namelist()]
        yield files


NODE_ROUNDS: tuple[tuple[str, ...], ...] = (
    ("vite@5.0.0", "typescript@5.2.2", "eslint@8.56.0", "react-dom@18.2.0"),
    ("vite@5.4.0", "typescript@5.4.5", "eslint@8.57.0", "react-dom@18.3.1"),
)


def node_versions(folder: Path) -> Iterator[Version]:
    """Yields ``node_modules`` of a small web project before and after an upgrade."""
    if shutil.which("npm") is None:
        raise UnavailableError("`npm` is not installed")
    for number, specs in enumerate(NODE_ROUNDS):
        project = folder / f"round{number}"
        if not (project / "node_modules").is_dir():
            project.mkdir(parents=True, exist_ok=True)
            (project / "package.json").write_text('{"name": "x", "version": "1.0.0"}')
            command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", *specs]
            if not run_quietly(command, project):
                shutil.rmtree(project)
                raise UnavailableError("`npm install` failed")
        yield read_tree(project / "node_modules", 0)


def run_quietly(command: list[str], folder: Path) -> bool:
    """Runs a command without output, for at most two minutes; tells whether it succeeded."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=120)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def read_tree(root: Path, larger_than: int) -> Iterator[bytes]:
    """Yields the contents of all regular files of a tree above a size, in the order of names."""
    for folder, names, files in os.walk(root):
        names.sort()
        for name in sorted(files):
            path = Path(folder, name)
            if path.is_file() and not path.is_symlink() and path.stat().st_size > larger_than:
                yield path.read_bytes()


def data_sets(data: Path, tree: Path | None) -> dict[str, Callable[[], Iterator[Version]]]:
    """Returns the data sets by name; none is made before it is asked for."""
    folders = {name: data / name for name in ("sqlite", "log", "wheels", "node_modules")}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    sets: dict[str, Callable[[], Iterator[Version]]] = {
        "SQLite": partial(sqlite_versions, folders["sqlite"]),
        "log": partial(log_versions, folders["log"]),
        "checkpoint": checkpoint_versions,
        "wheel cache": partial(wheel_versions, folders["wheels"]),
        "virtual environment": partial(venv_versions, folders["wheels"]),
        "node_modules": partial(node_versions, folders["node_modules"]),
    }
    if tree is not None:
        sets["large files of a tree"] = lambda: iter([read_tree(tree, SMALL_FILE)])
    return sets


# --- A small edit in a big file ----------------------------------------------------------------


@dataclass(frozen=True)
class Edit:
    """Bytes written over a place in a file, or inserted there."""

    at: int
    patch: bytes
    insert: bool


def edit_cost(data: bytes, cuts: list[int], scheme: Scheme, edit: Edit) -> int:
    """Returns the bytes of new chunks after an edit.

    Cutting has no memory beyond the current chunk, so it is enough to cut from the start of the
    chunk that holds the edit until a cut falls on an old cut again.
    """
    at, patch = edit.at, edit.patch
    shift = len(patch) if edit.insert else 0
    if scheme.name.startswith("fixed") and edit.insert:
        return len(data) + shift - at // scheme.average * scheme.average
    begin = cuts[bisect_right(cuts, at) - 1]
    window = data[begin : at + 64 * scheme.average]
    offset = at - begin
    changed = window[:offset] + patch + window[offset + len(patch) - shift :]
    known = set(cuts)
    end = begin
    for length in scheme.cut(memoryview(changed)):
        end += length
        if end >= at + len(patch) and end - shift in known:
            return end - begin
    raise RuntimeError(f"{scheme.name}: no cut in common after an edit")


def measure_edits(schemes: list[Scheme], rounds: int = 200) -> list[dict[str, Any]]:
    """Cuts a 256 MiB file and measures edits of 4 KiB around its middle."""
    rng = random.Random("edit")
    data = b"".join(rng.randbytes(16 * MIB) for _ in range(16))
    places = [rng.randrange(96 * MIB, 160 * MIB) for _ in range(rounds)]
    patch = rng.randbytes(4 * KIB)
    results = []
    for scheme in schemes:
        cuts = [0]
        for length in scheme.cut(memoryview(data)):
            cuts.append(cuts[-1] + length)
        row: dict[str, Any] = {"scheme": scheme.name, "mean_chunk": len(data) // (len(cuts) - 1)}
        for kind in ("overwrite", "insert"):
            edits = [Edit(at, patch, kind == "insert") for at in places]
            costs = sorted(edit_cost(data, cuts, scheme, edit) for edit in edits)
            row[kind] = {
                "mean": statistics.mean(costs),
                "median": statistics.median(costs),
                "p95": costs[len(costs) * 95 // 100],
                "max": costs[-1],
            }
        results.append(row)
    return results


# --- The two libraries -------------------------------------------------------------------------


def interleaved_speeds(
    schemes: list[Scheme], samples: dict[str, bytes], rounds: int
) -> list[dict[str, Any]]:
    """Times every scheme on every sample, all of them in each round; returns medians in MB/s."""
    times: dict[tuple[str, str], list[float]] = {}
    for number in range(rounds):
        turn = number % len(schemes)
        for scheme in schemes[turn:] + schemes[:turn]:
            for label, data in samples.items():
                begin = time.perf_counter()
                scheme.cut(memoryview(data))
                seconds = time.perf_counter() - begin
                times.setdefault((scheme.name, label), []).append(seconds)
    rows = []
    for scheme in schemes:
        row: dict[str, Any] = {"scheme": scheme.name}
        for label, data in samples.items():
            taken = times[scheme.name, label]
            row[label] = len(data) / statistics.median(taken) / 1e6
            row[f"{label} best and worst"] = [len(data) / t / 1e6 for t in (min(taken), max(taken))]
        rows.append(row)
    return rows


def pipeline_speeds(schemes: list[Scheme], data: bytes, rounds: int) -> dict[str, float]:
    """Cuts, hashes and compresses at level 3, chunk by chunk; returns medians in MB/s."""
    compressor = zstandard.ZstdCompressor(level=3)
    view = memoryview(data)
    times: dict[str, list[float]] = {scheme.name: [] for scheme in schemes}
    for number in range(rounds):
        turn = number % len(schemes)
        for scheme in schemes[turn:] + schemes[:turn]:
            begin = time.perf_counter()
            start = 0
            for length in scheme.cut(view):
                chunk = view[start : start + length]
                start += length
                blake3(chunk).digest()
                compressor.compress(chunk)
            times[scheme.name].append(time.perf_counter() - begin)
    return {name: len(data) / statistics.median(taken) / 1e6 for name, taken in times.items()}


def thread_gain(make: Callable[[], Cutter], data: bytes, rounds: int) -> float:
    """Returns how much faster two threads cut two buffers than one thread; median of ratios."""
    ratios = []
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(2):
            make()(memoryview(data))
        alone = time.perf_counter() - begin
        threads = [threading.Thread(target=make(), args=(memoryview(data),)) for _ in range(2)]
        begin = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ratios.append(alone / (time.perf_counter() - begin))
    return statistics.median(ratios)


def stability_inputs(text: bytes) -> list[bytes]:
    """Returns inputs that may tell two implementations apart: kinds of data and edge lengths."""
    noise = random.Random("stable").randbytes(3 * MIB)
    edges = (0, 1, 32 * KIB - 1, 32 * KIB, 32 * KIB + 1, 128 * KIB + 1, 512 * KIB + 1)
    return [noise, text[: 3 * MIB - 1], bytes(MIB), *(noise[:length] for length in edges)]


class ShortReads:
    """A stream that returns few bytes at a time, as pipes and network file systems do."""

    def __init__(self, data: bytes) -> None:
        """Wraps the data."""
        self._inner = io.BytesIO(data)

    def readinto(self, b: memoryview) -> int:
        """Fills at most 7919 bytes of the buffer."""
        return self._inner.readinto(b[:7919])


def cut_points_agree(text: bytes) -> dict[str, bool]:
    """Compares compiled with pure-Python cuts, and buffer with stream cuts where there are both."""
    pure_class = cast("type[FastCDC]", importlib.import_module("pyfastcdc.py").FastCDC)
    inputs = stability_inputs(text)
    agree = {"pyfastcdc": True, "pyfastcdc streams": True, "fastcdc": True}
    levels: list[tuple[int, Level]] = [(64, 2), (128, 2), (128, 1), (256, 2)]
    for kib, level in levels:
        made = [
            kind(kib * KIB, normalized_chunking=level, min_size=kib * 256, max_size=kib * 4096)
            for kind in (FastCDC, pure_class)
        ]
        for data in inputs:
            compiled, pure = ([(c.offset, c.length) for c in m.cut_buf(data)] for m in made)
            stream = [(c.offset, c.length) for c in made[0].cut_stream(ShortReads(data))]
            agree["pyfastcdc"] &= compiled == pure
            agree["pyfastcdc streams"] &= compiled == stream
    compiled_cut = fastcdc_cutter(128 * KIB)
    pure_cut = fastcdc_cutter(128 * KIB, "fastcdc.fastcdc_py")
    for data in inputs:
        agree["fastcdc"] &= compiled_cut(memoryview(data)) == pure_cut(memoryview(data))
    return agree


def describe(library: str) -> dict[str, Any]:
    """Returns version, dependencies and typing of an installed library."""
    dist = importlib.metadata.distribution(library)
    required = [r for r in dist.requires or [] if "extra" not in r.partition(";")[2]]
    names = [str(file) for file in dist.files or []]
    return {
        "version": dist.version,
        "requires": [r.split(" ")[0].split("(")[0] for r in required],
        "py.typed": any(name.endswith("py.typed") for name in names),
        "stubs": any(name.endswith(".pyi") for name in names),
    }


def compare_libraries(schemes: list[Scheme], rounds: int) -> dict[str, Any]:
    """Measures speed, threads and stability of both libraries in one interleaved run."""
    rng = random.Random("speed")
    text = Prose(rng, 64 * MIB).text.encode("ascii")
    samples = {"random": rng.randbytes(64 * MIB), "text": text}
    cutters: dict[str, Callable[[], Cutter]] = {
        "pyfastcdc": lambda: pyfastcdc_cutter(128 * KIB, 2),
        "fastcdc": lambda: fastcdc_cutter(128 * KIB),
    }
    gains = {name: thread_gain(make, samples["random"], rounds) for name, make in cutters.items()}
    return {
        "rounds": rounds,
        "speeds": interleaved_speeds(schemes, samples, rounds),
        "pipeline": pipeline_speeds(schemes, text, rounds),
        "two_thread_gain": gains,
        "cuts_agree": cut_points_agree(text),
        "about": {name: describe(name) for name in cutters},
    }


# --- Report ------------------------------------------------------------------------------------


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    """Returns a Markdown table; the first column is text, the others are numbers."""
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *rows])


def mib(value: float) -> str:
    """Formats bytes as MiB."""
    return f"{value / MIB:.2f}" if value < 10 * MIB else f"{value / MIB:.1f}"


def set_report(name: str, result: dict[str, Any]) -> str:
    """Returns heading and table for one data set."""
    if "left_out" in result:
        return f"\n### {name}\n\nLeft out: {result['left_out']}.\n"
    head = ["Scheme", "Chunks", "Mean KiB", "Raw MiB", "zstd-1", "zstd-3", "Lists"]
    head += ["Added per version", "Added, zstd-3", "Cut MB/s"]
    rows = []
    for row in result["schemes"]:
        later = [statistics.median(row[key][1:] or [0]) for key in ("added_raw", "added_zstd3")]
        speed = row["cut_mb_per_s"]
        rows.append(
            [row["scheme"], str(row["unique_chunks"]), f"{row['mean_chunk'] / KIB:.0f}"]
            + [
                mib(row[key])
                for key in ("unique_raw", "unique_zstd1", "unique_zstd3", "list_bytes")
            ]
            + [mib(value) if result["versions"] > 1 else "-" for value in later]
            + [f"{speed:.0f}" if speed and not row["scheme"].startswith("fixed") else "-"]
        )
    facts = f"{result['versions']} version(s), {result['files']} files, "
    facts += f"{mib(result['bytes'])} MiB; without chunking {mib(result['unique_whole_files'])} MiB"
    return f"\n### {name}\n\n{facts}.\n\n{table(head, rows)}\n"


def edit_report(results: list[dict[str, Any]]) -> str:
    """Returns the table of the 4 KiB edits, in KiB."""
    head = ["Scheme", "Mean chunk", "List of 1 GiB", "Overwrite mean", "median", "p95", "max"]
    head += ["Insert mean", "median", "p95", "max"]
    rows = [
        [row["scheme"], f"{row['mean_chunk'] / KIB:.0f}"]
        + [f"{DIGEST * 1024 * MIB / row['mean_chunk'] / KIB:.0f}"]
        + [f"{row[kind][key] / KIB:.0f}" for kind in ("overwrite", "insert") for key in row[kind]]
        for row in results
    ]
    return f"\n### A 4 KiB edit in a 256 MiB file (KiB added, raw)\n\n{table(head, rows)}\n"


def total_report(results: dict[str, dict[str, Any]]) -> str:
    """Returns the sums over all data sets that were measured."""
    sums: dict[str, list[int]] = {}
    keys = ("unique_chunks", "unique_raw", "unique_zstd1", "unique_zstd3", "list_bytes")
    for result in results.values():
        for row in result.get("schemes", []):
            found = sums.setdefault(row["scheme"], [0] * len(keys))
            sums[row["scheme"]] = [a + row[key] for a, key in zip(found, keys, strict=True)]
    head = ["Scheme", "Chunks", "Raw MiB", "zstd-1", "zstd-3", "Lists"]
    rows = [[name, str(row[0]), *map(mib, row[1:])] for name, row in sums.items()]
    return f"\n### All sets together\n\n{table(head, rows)}\n"


def library_report(result: dict[str, Any]) -> str:
    """Returns the tables of speeds and properties."""
    base = next(row for row in result["speeds"] if row["scheme"] == "pyfastcdc 128K NC2")
    head = ["Scheme", "Random MB/s", "Ratio", "Text MB/s", "Ratio"]
    head += ["Cut, hash, zstd-3 MB/s", "Ratio"]
    whole = result["pipeline"]
    rows = [
        [row["scheme"]]
        + [
            cell
            for kind in ("random", "text")
            for cell in (f"{row[kind]:.0f}", f"{row[kind] / base[kind]:.2f}")
        ]
        + [f"{whole[row['scheme']]:.0f}", f"{whole[row['scheme']] / whole[base['scheme']]:.2f}"]
        for row in result["speeds"]
        if not row["scheme"].startswith("fixed")
    ]
    lines = [f"\n### Libraries, medians of {result['rounds']} interleaved rounds\n"]
    lines += [table(head, rows), ""]
    for name, about in result["about"].items():
        agree = {key: value for key, value in result["cuts_agree"].items() if key.startswith(name)}
        lines.append(
            f"- `{name}` {about['version']}: requires {', '.join(about['requires']) or 'nothing'}; "
            f"py.typed {about['py.typed']}, stubs {about['stubs']}; two threads "
            f"{result['two_thread_gain'][name]:.2f}x; cuts agree {agree}"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Runs all measurements, prints Markdown and writes the JSON file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="directory for the data sets")
    parser.add_argument("--json", type=Path, required=True, help="file for all figures")
    parser.add_argument("--tree", type=Path, help="tree whose files above 256 KiB are cut too")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of the speed comparison")
    options = parser.parse_args(arguments)
    schemes = all_schemes()
    libraries = compare_libraries(schemes, options.rounds)
    print(library_report(libraries), flush=True)
    edits = measure_edits(schemes)
    print(edit_report(edits), flush=True)
    results: dict[str, Any] = {}
    for name, versions in data_sets(options.data, options.tree).items():
        try:
            results[name] = measure(versions(), schemes)
        except UnavailableError as reason:
            results[name] = {"left_out": str(reason)}
        print(set_report(name, results[name]), flush=True)
    print(total_report(results))
    figures = {"libraries": libraries, "edits": edits, "sets": results}
    options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
