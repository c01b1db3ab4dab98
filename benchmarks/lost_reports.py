"""What two layers of watchdog tell of changes: its Observer, and its queue of inotify's reports.

    python benchmarks/lost_reports.py [--files 40000] [--directory DIR]

For docs/adr/0012-watching.md. Each layer runs in a process of its own, which is stopped while the
files are made, and goes on when all of them are there. Then: how long after it a process learns
that a directory left the tree; what it learns of a directory for which there was no watch left;
and the processor's time for watching 20,000 directories, for taking a report of each, and for
ending it.
"""

from __future__ import annotations

import argparse
import errno
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

PAUSE_S = 2.0
"""After so long without a report, all are there."""


class Through:
    """Counts what one layer reports of a directory and all below it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.counts: Counter[str] = Counter()
        self.last_s = time.monotonic()

    def count(self, what: str) -> None:
        self.counts[what] += 1
        self.last_s = time.monotonic()

    def settle(self) -> None:
        self.last_s = time.monotonic()
        while time.monotonic() - self.last_s < PAUSE_S:
            time.sleep(0.01)


class ThroughObserver(Through):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        from watchdog.events import FileSystemEvent, FileSystemEventHandler
        from watchdog.observers import Observer

        through = self

        class Handler(FileSystemEventHandler):
            def on_any_event(self, event: FileSystemEvent) -> None:
                through.count(event.event_type)

        self.observer = Observer()
        self.observer.schedule(Handler(), str(root), recursive=True)
        self.observer.start()

    def close(self) -> None:
        self.observer.stop()
        self.observer.join()


class ThroughQueue(Through):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        from watchdog.observers.inotify_c import InotifyConstants, InotifyFD

        self.queue = InotifyFD()
        names = {0x40: "moved from", 0x80: "moved to", 0x100: "created", 0x200: "deleted"}
        names[0x4000] = "overflow"
        for number, path in enumerate(sorted(item[0] for item in os.walk(root))):
            mask = InotifyConstants.IN_MOVE | InotifyConstants.IN_CREATE
            self.queue.add_callback(os.fsencode(path), mask, None, number)

        def read() -> None:
            while events := self.queue.read_events():
                for event in events:
                    self.count(names.get(event.mask & 0xFFFF, "other"))

        threading.Thread(target=read, daemon=True).start()

    def close(self) -> None:
        pass  # with the process


LAYERS = {"Observer": ThroughObserver, "InotifyFD": ThroughQueue}


def listen(layer: str, root: Path) -> None:
    """Runs in the process that is stopped: prints what it was told, each time it is asked."""
    logged: Counter[str] = Counter()

    class Logged(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged[record.getMessage().split(";")[0]] += 1

    logging.getLogger("watchdog").addHandler(Logged())
    try:
        through = LAYERS[layer](root)
    except OSError as error:
        print(json.dumps({"raised": errno.errorcode[error.errno or 0]}), flush=True)
        return
    print(json.dumps({"raised": None}), flush=True)
    for line in sys.stdin:
        if line.startswith("settle"):
            through.settle()
        else:
            start_s = time.monotonic()
            wanted = line.strip()
            while not through.counts[wanted]:
                time.sleep(0.001)
            through.counts["ms"] = round((time.monotonic() - start_s) * 1000)
        print(json.dumps({"told": dict(through.counts), "logged": dict(logged)}), flush=True)
        through.counts.clear()
    through.close()


class Listener:
    """The process of one layer."""

    def __init__(self, layer: str, root: Path, *, watches_max: int | None = None) -> None:
        words = [sys.executable, __file__, "--listen", layer, "--directory", str(root)]
        if watches_max is not None:
            limit = f"echo {watches_max} > /proc/sys/user/max_inotify_watches"
            limited = f'{limit} && exec "$0" "$@"'
            words = ["unshare", "--user", "--map-root-user", "sh", "-c", limited, *words]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.begun = self.hear()

    def hear(self) -> dict[str, object]:
        assert self.process.stdout is not None
        heard: dict[str, object] = json.loads(self.process.stdout.readline())
        return heard

    def ask(self, line: str) -> dict[str, object]:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.hear()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def cost(place: Path, count: int = 20_000) -> None:
    """Prints what the queue that treesnap uses costs."""
    from treesnap.core.fs.notifier import NAMES, Notifier

    paths = [place / f"{number % 100}" / f"{number}" for number in range(count)]
    for path in paths:
        path.mkdir(parents=True)
    notifier = Notifier()
    times_s = [time.process_time()]
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        notifier.watch(fd, NAMES)
        os.close(fd)
    times_s.append(time.process_time())
    taken = 0
    for path in paths:
        os.mknod(path / "new")
        taken += len(notifier.take())
    while taken < count:
        notifier.wait(PAUSE_S)
        taken += len(notifier.take())
    times_s.append(time.process_time())
    notifier.close()
    times_s.append(time.process_time())
    each = [f"{(end - start) / count * 1e6:.1f}" for start, end in pairwise(times_s)]
    print(
        "Notifier, in us: {} to watch, {} to make a file and take its report, {} to end".format(
            *each
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--files", type=int, default=40_000)
    parser.add_argument("--directory", type=Path, default=None)
    parser.add_argument("--listen", default=None, help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.listen is not None:
        listen(wanted.listen, wanted.directory)
        return
    for layer in LAYERS:
        place = Path(tempfile.mkdtemp(dir=wanted.directory))
        try:
            measure(layer, place, wanted.files)
        finally:
            shutil.rmtree(place)
    with tempfile.TemporaryDirectory(dir=wanted.directory) as directory:
        cost(Path(directory))


def measure(layer: str, place: Path, files: int) -> None:
    root = place / "root"
    (root / "directory").mkdir(parents=True)
    listener = Listener(layer, root)
    listener.process.send_signal(signal.SIGSTOP)
    for number in range(files):
        os.mknod(root / str(number))
    listener.process.send_signal(signal.SIGCONT)
    print(f"{layer}: {files} files made while it was stopped: {listener.ask('settle')}")
    listener.close()

    listener = Listener(layer, root)
    (root / "directory").rename(place / "away")
    word = "deleted" if layer == "Observer" else "moved from"
    print(f"{layer}: a directory was moved out of the tree: {listener.ask(word)}")
    listener.close()
    (place / "away").rename(root / "directory")

    for watches_max in (0, 1):
        listener = Listener(layer, root, watches_max=watches_max)
        print(f"{layer}: two directories, {watches_max} watches: {listener.begun}", end="")
        if listener.begun["raised"] is None:
            os.mknod(root / "directory" / f"new-{watches_max}")
            print(f", then a file in the second: {listener.ask('settle')}", end="")
        print()
        listener.close()


if __name__ == "__main__":
    main()
