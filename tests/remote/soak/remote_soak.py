"""A soak of a remote: many machines, a collector or two, and servers that are killed under them.

Chance decides what happens, as in :mod:`soak.soak`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from ceph import ACCESS_KEY, SECRET_KEY, Ceph, free_ports
from crash.scene import environment
from remote.soak.remote_actors import RemotePlace
from soak.soak import TESTS

RAW_KEY = "5a" * 32
COLLECTORS = 2
TICK_S = 0.25
PAUSE_S = (0.3, 4.0)
"""How long all servers work before the next ones are killed."""
DOWN_S = (0.1, 6.0)
"""How long a server stays dead."""
KILLED_PART = 0.5
"""The part of the gateways, and of the times one of the storages, that is killed at once. With two
storages dead nothing could be written, and no machine could be expected to go on."""
BLOCKED_S = 180.0
"""A writer is blocked to whom nothing was acknowledged for so long while all servers worked."""


@dataclass
class Child:
    """A machine that works, and how far it came."""

    name: str
    process: subprocess.Popen[bytes]
    number: int
    seen: float = 0.0
    """When something was acknowledged last, by the file that says so."""
    seen_s: float = field(default_factory=time.monotonic)
    waits_s: float = 0.0
    """For how long nothing was acknowledged while all servers worked."""

    @property
    def is_writer(self) -> bool:
        return self.name.startswith("writer")


class RemoteSoak:
    """Starts the machines, and kills the servers."""

    def __init__(self, place: RemotePlace, cluster: Ceph, random: Random, writers: int) -> None:
        self.place = place
        self.done: Counter[str] = Counter()
        self.blocked: set[str] = set()
        self.longest_wait_s = 0.0
        """The longest time that a writer took for one snapshot, servers that were dead included."""
        self._cluster = cluster
        self._random = random
        self._writers = writers
        self._children: list[Child] = []
        self._dead: dict[str, float] = {}
        """The servers that were killed, and when to start them again."""
        self._starting: set[str] = set()

    def run(self, goes_on: Callable[[], bool]) -> None:
        """Lets the machines work for as long as it goes on, then until each has ended."""
        roles = ["writer"] * self._writers + ["collector"] * COLLECTORS
        self._children = [self._start(role, number) for number, role in enumerate(roles)]
        last_s = kill_at_s = time.monotonic()
        try:
            while goes_on():
                time.sleep(TICK_S)
                now_s = time.monotonic()
                self._start_again(now_s)
                all_work = not self._dead and not self._starting
                self._watch(now_s - last_s if all_work else 0.0)
                if not all_work:
                    kill_at_s = now_s + self._random.uniform(*PAUSE_S)
                elif now_s >= kill_at_s:
                    self._kill(now_s)
                last_s = now_s
            self._end()
        finally:
            for child in self._children:
                child.process.kill()
                child.process.wait()

    def _start(self, role: str, number: int) -> Child:
        seed = self._random.randrange(1 << 32)
        words = (self.place.directory, len(self.place.roots), role, number, seed)
        name = f"{role}-{number}"
        with (self.place.logs / name).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "remote.soak.remote_actors", *map(str, words)],
                env=remote_environment(self.place),
                cwd=self.place.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return Child(name, process, number)

    def _kill(self, now_s: float) -> None:
        """Kills some servers, at least one."""
        cluster, random = self._cluster, self._random
        victims = [name for name in cluster.gateways if random.random() < KILLED_PART]
        if not victims or random.random() < KILLED_PART:
            victims.append(random.choice(cluster.storages))
        for victim in victims:
            cluster.kill_process(victim)
            self._dead[victim] = now_s + random.uniform(*DOWN_S)
            self.done[f"{victim.rstrip('0123456789')} killed"] += 1

    def _start_again(self, now_s: float) -> None:
        for name, at_s in list(self._dead.items()):
            if now_s >= at_s:
                self._cluster.start_process(name)
                self._starting.add(name)
                del self._dead[name]
        self._starting = {name for name in self._starting if not self._cluster.is_up(name)}

    def _watch(self, working_s: float) -> None:
        """Looks how far the writers came, in the time since then that all servers worked."""
        for child in self._children:
            if child.process.poll() is not None:
                self.place.report("soak", f"{child.name} ended with {child.process.returncode}")
                self._children[self._children.index(child)] = self._start(
                    child.name.partition("-")[0], child.number
                )
            elif child.is_writer:
                self._watch_writer(child, working_s)

    def _watch_writer(self, child: Child, working_s: float) -> None:
        path = self.place.progress_file(child.number)
        seen = path.stat().st_mtime if path.exists() else 0.0
        now_s = time.monotonic()
        self.longest_wait_s = max(self.longest_wait_s, now_s - child.seen_s)
        if seen != child.seen:
            child.seen, child.seen_s, child.waits_s = seen, now_s, 0.0
            return
        child.waits_s += working_s
        if child.waits_s > BLOCKED_S and child.name not in self.blocked:
            self.blocked.add(child.name)
            child.process.send_signal(signal.SIGUSR1)  # its log says where it is

    def _end(self) -> None:
        """Starts all servers, and lets every machine do its last round."""
        for name in self._dead:
            self._cluster.start_process(name)
        servers = (*self._cluster.storages, *self._cluster.gateways)
        self._cluster.wait_for(*servers, timeout_s=BLOCKED_S)
        self.place.stop_file.touch()
        deadline_s = time.monotonic() + BLOCKED_S
        for child in self._children:
            try:
                code = child.process.wait(timeout=max(1.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.send_signal(signal.SIGUSR1)
                if child.is_writer:
                    self.blocked.add(child.name)
                else:
                    self.place.report("soak", f"{child.name} does not end")
                time.sleep(TICK_S)
                continue
            if code != 0:
                self.place.report("soak", f"{child.name} ended with {code}")


FOLDERS = [TESTS, *(TESTS / name for name in ("core", "support", "remote/support"))]
"""Where machines find their modules."""


def remote_environment(place: RemotePlace) -> Mapping[str, str]:
    """Returns the variables of a machine: the secrets, and nothing that obstore would obey."""
    dropped = ("AWS_", "AZURE_", "GOOGLE_")
    source = os.path.dirname(os.path.dirname(sys.modules["treesnap"].__file__ or ""))
    kept = {
        name: value
        for name, value in environment(place.directory).items()
        if not name.startswith(dropped) and not name.lower().endswith("_proxy")
    }
    return kept | {
        "PYTHONPATH": os.pathsep.join(map(str, (source, *FOLDERS))),
        "TREESNAP_REMOTE_KEY": RAW_KEY,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_METADATA_ENDPOINT": f"http://127.0.0.1:{free_ports(1)[0]}",
    }
