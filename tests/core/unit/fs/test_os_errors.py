"""Errors of the operating system become ours."""

from __future__ import annotations

import errno
import os

import pytest

from treesnap.core.fs.os_errors import translating_os_errors
from treesnap.core.model.errors import Busy, OperationFailed, StorageFull


def fail(error: BaseException) -> None:
    with translating_os_errors("take a snapshot"):
        raise error


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_or_quota_is_told_apart(number):
    with pytest.raises(StorageFull, match="Could not take a snapshot"):
        fail(OSError(number, os.strerror(number)))


def test_other_errors_carry_number_path_and_cause():
    cause = PermissionError(errno.EACCES, "Permission denied", "/some/file")

    with pytest.raises(OperationFailed, match="at '/some/file': Permission denied") as caught:
        fail(cause)

    assert (caught.value.errno, caught.value.path) == (errno.EACCES, "/some/file")
    assert caught.value.__cause__ is cause


def test_a_path_that_is_no_text_is_shown_safely():
    with pytest.raises(OperationFailed, match="xff"):
        fail(OSError(errno.EIO, "Input/output error", b"\xff\n"))


def test_an_error_without_a_number_keeps_its_words():
    with pytest.raises(OperationFailed, match="Could not take a snapshot: it is odd"):
        fail(OSError("it is odd"))


@pytest.mark.parametrize("error", [Busy("held"), ValueError("bug"), KeyboardInterrupt()])
def test_everything_else_passes_through(error):
    with pytest.raises(type(error)) as caught:
        fail(error)

    assert caught.value is error
