"""Lets many machines share a remote on Ceph, kills its servers, and clones what was acknowledged.

``tox -e soak-remote`` runs it, as ``python -m remote.soak.run_remote_soak`` with the paths that it
needs. Ends with 1 when anything was wrong. Needs what :mod:`ceph` names.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from random import Random
from typing import Any

from ceph import missing_programs, running_ceph
from crash.scene import workspace
from remote.soak.remote_actors import RemotePlace
from remote.soak.remote_checks import RemoteChecker
from remote.soak.remote_soak import COLLECTORS, RemoteSoak, remote_environment
from soak.soak import timed

BUCKET = "soak"


def remote_soak(
    directory: Path,
    seed: int,
    writers: int,
    *,
    seconds: float | None = None,
    pushes: int = 0,
    events: Collection[str] = (),
) -> tuple[list[str], Counter[str], str]:
    """Soaks for so many seconds, or so many pushes and until some events have happened.

    Returns problems, counts and the outcome.
    """
    place = RemotePlace(directory, root_count=writers + COLLECTORS)
    place.prepare(seed)
    (directory / "ceph").mkdir()
    os.environ.update(remote_environment(place))
    with running_ceph(directory / "ceph", storages=3, gateways=2, is_durable=True) as cluster:
        cluster.make_bucket(BUCKET)
        urls = [f"s3://{BUCKET}/shared?endpoint={endpoint}" for endpoint in cluster.endpoints]
        place.add_remote(urls)
        run = RemoteSoak(place, cluster, Random(seed), writers)
        counts = place.counts()
        begun_s = time.monotonic()

        def goes_on() -> bool:
            if seconds is not None:
                return time.monotonic() < begun_s + seconds
            happened = events_of(counts.lines())
            enough = happened["writer: acknowledged"] >= pushes
            return not enough or not (run.done.keys() | happened.keys()).issuperset(events)

        with timed(run.done, "soaked"):
            run.run(goes_on)
        with timed(run.done, "checked"):
            checker = RemoteChecker(place, urls[0])
            checker.run()
    run.done.update(events_of(counts.lines()))
    run.done["seconds: longest for one snapshot"] = round(run.longest_wait_s)
    found = checker.counts
    run.done["acknowledged, and deleted by a policy"] = found["deleted"]
    text = (
        f"{found['acknowledged']:,} acknowledged snapshots, {found['lost']} lost, "
        f"{len(run.blocked)} writers blocked, {found['restored exactly']:,} restored exactly"
    )
    blocked = [f"{name} was blocked" for name in sorted(run.blocked)]
    return place.problems() + checker.problems + blocked, run.done, text


def events_of(lines: Iterable[dict[str, Any]]) -> Counter[str]:
    """Returns how often machines of each role did something."""
    return Counter(f"{line['who'].partition('-')[0]}: {line['what']}" for line in lines)


def main() -> int:
    """Runs what the options say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=Random().randrange(10**6))
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--writers", type=int, default=32)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where to keep what was wrong")
    options = parser.parse_args()
    if missing := missing_programs():
        parser.error(f"Ceph is not installed: {', '.join(missing)}")
    print(f"seed {options.seed}", flush=True)
    with workspace("soak") as directory:
        problems, counts, text = remote_soak(
            directory, options.seed, options.writers, seconds=options.seconds
        )
        for what, number in sorted(counts.items()):
            print(f"{number:10,}  {what}")
        for problem in problems:
            print("PROBLEM", problem)
        if problems and options.keep is not None:
            subprocess.run(["cp", "-a", "--", directory, options.keep], check=True)
    print(f"{text}, {len(problems)} problems, seed {options.seed}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
