"""A Ceph cluster of one machine that speaks S3: monitor, storage and gateway as plain processes.

Everything listens on 127.0.0.1 alone and lies below one directory; objects are kept in memory. The
programs are those of the Debian packages ceph-mon, ceph-osd, radosgw and ceph-common.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

PROGRAMS = ("ceph", "ceph-mon", "ceph-osd", "monmaptool", "radosgw", "radosgw-admin", "setpriv")
ACCESS_KEY, SECRET_KEY = "testkey", "testsecret"  # the user of the tests
START_TIMEOUT_S = 60
PAUSE_S = 0.02


def missing_programs() -> list[str]:
    """Returns the programs that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


def free_ports(count: int) -> list[int]:
    """Returns ports of 127.0.0.1 that nobody listens at."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [item.getsockname()[1] for item in sockets]
    for item in sockets:
        item.close()
    return ports


class Ceph:
    """A running cluster with an S3 gateway at ``endpoint``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._port, self._monitor_port = free_ports(2)
        self.endpoint = f"http://127.0.0.1:{self._port}"
        self._configuration = directory / "ceph.conf"
        self._cluster_id = str(uuid.uuid4())
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Makes the cluster and returns when the gateway answers."""
        for name in ("run", "log", "monitor", "gateway", "storage"):
            (self.directory / name).mkdir()
        self._write_configuration()
        self._start_monitor()
        self._start_storage()
        self._start_gateway()

    def kill(self) -> None:
        """Kills all processes; nothing of the cluster is worth an orderly end."""
        for process in self._processes.values():
            process.kill()
            process.wait()
        self._processes.clear()

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
        below = self.directory
        values: dict[str, Any] = {
            "fsid": self._cluster_id,
            "mon_host": f"v2:127.0.0.1:{self._monitor_port}",
            "mon_initial_members": "a",
            "public_addr": "127.0.0.1",
            "cluster_addr": "127.0.0.1",
            "ms_bind_msgr1": "false",
            # Nobody proves who they are, so nothing can be encrypted.
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
            "osd_data": below / "storage",
            "rgw_data": below / "gateway",
            # One copy of everything, in memory.
            "osd_objectstore": "memstore",
            "memstore_device_bytes": 4 << 30,
            "osd_pool_default_size": 1,
            "osd_pool_default_min_size": 1,
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
        for part in ("rocksdb", "ms", "osd", "mon", "paxos", "rgw"):
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

    def _start_storage(self) -> None:
        identity = str(uuid.uuid4())
        timeout = str(START_TIMEOUT_S)
        self._run("ceph", "--connect-timeout", timeout, "osd", "new", identity)
        self._run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", identity)
        self._spawn("storage", "ceph-osd", "-f", "-i", "0")

    def _start_gateway(self) -> None:
        # With Nagle's algorithm each small answer takes 40 ms.
        frontend = f"beast endpoint=127.0.0.1:{self._port} tcp_nodelay=1"
        self._spawn("gateway", "radosgw", "-f", "-n", "client.rgw", "--rgw-frontends", frontend)
        keys = [f"--access-key={ACCESS_KEY}", f"--secret-key={SECRET_KEY}"]
        words = ["user", "create", "--uid=tests", "--display-name=tests", *keys]
        self._run("radosgw-admin", *words)

        def answers() -> bool:
            try:
                with urlopen(self.endpoint, timeout=START_TIMEOUT_S) as answer:
                    return bool(answer.status == 200)
            except (URLError, ConnectionError):
                return False

        self._wait(answers)

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
        with (self.directory / "log" / f"{name}.out").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *words],  # even if the tests are killed
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "CEPH_CONF": str(self._configuration)}

    def _wait(self, is_ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not is_ready():
            for name, process in self._processes.items():
                assert process.poll() is None, f"{name} ended, see {self.directory}/log"
            assert time.monotonic() < deadline, f"no answer, see {self.directory}/log"
            time.sleep(PAUSE_S)


@contextmanager
def running_ceph(directory: Path) -> Iterator[Ceph]:
    """Runs a cluster below an empty directory, and kills it afterwards."""
    cluster = Ceph(directory)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()
        shutil.rmtree(directory, ignore_errors=True)
