"""Who owns the files of users that a sandbox does not know."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from treesnap.core.fs.processes import unmapped_owner_id

OVERFLOW_ID = Path("/proc/sys/kernel/overflowuid")


@pytest.mark.needs("linux")
@pytest.mark.skipif(not OVERFLOW_ID.exists(), reason="Linux tells which id that is")
def test_a_sandbox_in_which_one_user_is_mapped_shows_all_others_as_one():
    program = "from treesnap.core.fs.processes import unmapped_owner_id as f; print(f())"
    words = ["unshare", "--user", "--map-root-user", sys.executable, "-c", program]

    ended = subprocess.run(words, capture_output=True, text=True, check=False)

    if ended.returncode != 0 and "unshare" in ended.stderr:
        pytest.skip("no user namespace can be made here")
    assert int(ended.stdout) == int(OVERFLOW_ID.read_text())


@pytest.mark.needs("linux")
def test_where_all_users_are_mapped_there_is_no_such_id():
    if "4294967295" not in Path("/proc/self/uid_map").read_text():
        pytest.skip("this is such a sandbox")
    assert unmapped_owner_id() is None
