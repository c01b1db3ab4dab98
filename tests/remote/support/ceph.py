"""A Ceph cluster of one machine that speaks S3: monitor, storages and gateways as plain processes.

Everything listens on 127.0.0.1 alone and lies below one directory. Storages that are not durable
keep objects in memory, and start faster. The programs are those of the Debian packages ceph-mon,
ceph-osd, radosgw and ceph-common.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from random import SystemRandom
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

PROGRAMS = ("ceph", "ceph-mon", "ceph-osd", "monmaptool", "radosgw", "radosgw-admin", "setpriv")
ACCESS_KEY, SECRET_KEY = "testkey", "testsecret"  # the user of the tests
START_TIMEOUT_S = 240  # seconds are enough, unless others work on the machine
ANSWER_TIMEOUT_S = 2
PAUSE_S = 0.02


def missing_programs() -> list[str]:
    """Returns the programs that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


def free_ports(count: int) -> list[int]:
    """Returns ports of 127.0.0.1 that no process listens at, and that no connection gets by chance.

    So a server that was killed finds its port free, however many connections were made since.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    sockets: list[socket.socket] = []
    while len(sockets) < count:
        with suppress(OSError):
            sockets.append(
                socket.create_server(("127.0.0.1", SystemRandom().randrange(10_000, first)))
            )
    ports: list[int] = [item.getsockname()[1] for item in sockets]
    for item in sockets:
        item.close()
    return ports


class Ceph:
    """A running cluster with S3 gateways at ``endpoints``.

    Durable storages outlive being killed. Three of them hold a copy of everything each, and a
    write is acknowledged while two of them live.
    """

    def __init__(
        self, directory: Path, *, storages: int = 1, gateways: int = 1, is_durable: bool = False
    ) -> None:
        self.directory = directory
        self._is_durable = is_durable
        self._monitor_port, *ports = free_ports(1 + gateways)
        self._gateway_ports = {f"gateway{number}": port for number, port in enumerate(ports)}
        self.gateways = tuple(self._gateway_ports)
        self.storages = tuple(f"storage{number}" for number in range(storages))
        self.endpoints = tuple(f"http://127.0.0.1:{port}" for port in ports)
        self.endpoint = self.endpoints[0]
        self._configuration = directory / "ceph.conf"
        self._cluster_id = str(uuid.uuid4())
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Makes the cluster and returns when the gateways answer."""
        for name in ("run", "log", "monitor", *self.gateways, *self.storages):
            (self.directory / name).mkdir()
        self._write_configuration()
        self._start_monitor()
        for number, name in enumerate(self.storages):
            self._make_storage(number)
            self.start_process(name)
        self._make_user()
        for name in self.gateways:
            self.start_process(name)
        self.wait_for(*self.storages, *self.gateways)

    def kill(self) -> None:
        """Kills all processes; nothing of the cluster is worth an orderly end."""
        for name in tuple(self._processes):
            self.kill_process(name)

    def kill_process(self, name: str) -> None:
        """Kills a storage or a gateway, as if its machine lost its power."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def start_process(self, name: str) -> None:
        """Starts a storage or a gateway that was killed; returns at once."""
        if name in self.storages:
            self._spawn(name, "ceph-osd", "-f", "-i", str(self.storages.index(name)))
            return
        # With Nagle's algorithm each small answer takes 40 ms.
        frontend = f"beast endpoint=127.0.0.1:{self._gateway_ports[name]} tcp_nodelay=1"
        self._spawn(name, "radosgw", "-f", "-n", f"client.{name}", "--rgw-frontends", frontend)

    def wait_for(self, *names: str, timeout_s: float = START_TIMEOUT_S) -> None:
        """Returns when storages and gateways answer; fails where one does not in time."""
        deadline_s = time.monotonic() + timeout_s
        for name in names:
            while not self.is_up(name):
                code = self._processes[name].poll()
                assert code is None, f"{name} ended with {code}, see {self.directory}/log"
                what = f"{name} does not answer, see {self.directory}/log"
                assert time.monotonic() < deadline_s, what
                time.sleep(PAUSE_S)

    def is_up(self, name: str) -> bool:
        """Tells whether a storage or a gateway works."""
        if name in self.storages:
            try:
                status = self._asked(f"osd.{self.storages.index(name)}", "status")
            except (OSError, ValueError):
                return False
            return bool(status["state"] == "active")
        try:
            address = self.endpoints[self.gateways.index(name)]
            with urlopen(address, timeout=ANSWER_TIMEOUT_S) as answer:
                return bool(answer.status == 200)
        except (URLError, ConnectionError, TimeoutError):
            return False

    def cpu_seconds(self) -> float:
        """Returns the processor time of all processes that run."""
        ticks = 0
        for process in self._processes.values():
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def requests(self) -> int:
        """Returns how many requests the gateways have answered."""
        counters = (self._asked(f"client.{name}", "perf dump") for name in self.gateways)
        return sum(int(item["rgw"]["req"]) for item in counters)

    def _asked(self, who: str, command: str) -> Any:
        """Returns what a process answers at its socket; raises OSError and ValueError."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER_TIMEOUT_S)
            connection.connect(str(self.directory / "run" / f"{who}.asok"))
            connection.sendall(json.dumps({"prefix": command}).encode() + b"\0")
            with connection.makefile("rb") as stream:
                answer = stream.read()
        return json.loads(answer[4:])  # after its size

    def make_bucket(self, name: str) -> None:
        """Makes a bucket of the tests' user."""
        import obstore
        from obstore.store import S3Store

        store = S3Store(
            name,
            endpoint=self.endpoint,
            region="us-east-1",
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
            client_options={"allow_http": True},
        )
        signed = obstore.sign(store, "PUT", "", timedelta(minutes=5))
        with urlopen(Request(signed, method="PUT"), timeout=START_TIMEOUT_S):
            pass

    def _write_configuration(self) -> None:
        below, copies = self.directory, min(3, len(self.storages))
        values: dict[str, Any] = {
            "fsid": self._cluster_id,
            "mon_host": f"v2:127.0.0.1:{self._monitor_port}",
            "mon_initial_members": "a",
            "public_addr": "127.0.0.1",
            "cluster_addr": "127.0.0.1",
            "ms_bind_msgr1": "false",
            # No client proves who it is, so nothing can be encrypted.
            "auth_cluster_required": "none",
            "auth_service_required": "none",
            "auth_client_required": "none",
            "auth_allow_insecure_global_id_reclaim": "false",
            "ms_mon_client_mode": "crc",
            "keyring": "/dev/null",
            "run_dir": below / "run",
            "admin_socket": f"{below}/run/$name.asok",
            "log_file": f"{below}/log/$name.log",
            "log_to_stderr": "false",
            "crash_dir": below / "run",
            "mon_data": below / "monitor",
            "osd_data": f"{below}/storage$id",
            "rgw_data": f"{below}/$id",
            "osd_objectstore": "bluestore" if self._is_durable else "memstore",
            "memstore_device_bytes": 4 << 30,
            "bluestore_block_size": 16 << 30,  # of which the file system holds what is used
            "bluestore_cache_autotune": "false",
            "bluestore_cache_size": 64 << 20,
            "osd_pool_default_size": copies,
            "osd_pool_default_min_size": max(1, copies - 1),
            "osd_pool_default_pg_num": 4,
            "osd_pool_default_pgp_num": 4,
            "osd_pool_default_pg_autoscale_mode": "off",
            "osd_crush_chooseleaf_type": 0,
            "mon_allow_pool_size_one": "true",
            "mon_warn_on_pool_no_redundancy": "false",
            "mon_max_pg_per_osd": 1000,
            # A disk of the machine that is nearly full is none of our business.
            "mon_data_avail_crit": 1,
            "mon_data_avail_warn": 1,
            "osd_failsafe_full_ratio": 0.995,
            "mon_osd_full_ratio": 0.99,
            "mon_osd_backfillfull_ratio": 0.985,
            "mon_osd_nearfull_ratio": 0.98,
            # Start soon, and with few threads.
            "paxos_propose_interval": 0.05,
            "paxos_min_wait": 0.01,
            "osd_op_num_shards": 2,
            "osd_op_num_threads_per_shard": 2,
            "rgw_thread_pool_size": 64,
            "rgw_num_rados_handles": 1,
            "rgw_run_sync_thread": "false",
            "rgw_dns_name": "localhost",
        }
        for part in ("rocksdb", "bluestore", "bluefs", "bdev", "ms", "osd", "mon", "paxos", "rgw"):
            values[f"debug_{part}"] = 0
        lines = [f"{name} = {value}\n" for name, value in values.items()]
        self._configuration.write_text("".join(["[global]\n", *lines]))

    def _start_monitor(self) -> None:
        map_file = str(self.directory / "monmap")
        address = f"[v2:127.0.0.1:{self._monitor_port}]"
        self._run(
            "monmaptool", "--create", "--fsid", self._cluster_id, "--addv", "a", address, map_file
        )
        self._run("ceph-mon", "--mkfs", "-i", "a", "--monmap", map_file)
        self._spawn("monitor", "ceph-mon", "-f", "-i", "a")

    def _make_storage(self, number: int) -> None:
        identity = str(uuid.uuid4())
        timeout = str(START_TIMEOUT_S)
        self._run("ceph", "--connect-timeout", timeout, "osd", "new", identity)
        self._run("ceph-osd", "-i", str(number), "--mkfs", "--osd-uuid", identity)

    def _make_user(self) -> None:
        keys = [f"--access-key={ACCESS_KEY}", f"--secret-key={SECRET_KEY}"]
        words = ["user", "create", "--uid=tests", "--display-name=tests", *keys]
        self._run("radosgw-admin", *words)

    def _run(self, *words: str) -> str:
        done = subprocess.run(
            words,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def _spawn(self, name: str, *words: str) -> None:
        with (self.directory / "log" / f"{name}.out").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *words],  # even if the tests are killed
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # a person's interrupt is for the tests
            )

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "CEPH_CONF": str(self._configuration)}


@contextmanager
def running_ceph(directory: Path, **options: Any) -> Iterator[Ceph]:
    """Runs a cluster below an empty directory, and kills it afterwards."""
    cluster = Ceph(directory, **options)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()
        shutil.rmtree(directory, ignore_errors=True)
