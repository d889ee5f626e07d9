"""One directory, one writer."""

import os

import pytest

from scalerl.errors import InputError
from scalerl.runs.lock import RunLock, is_locked


def test_one_directory_has_one_writer(tmp_path):
    assert not is_locked(tmp_path)
    with RunLock(tmp_path):
        assert is_locked(tmp_path)
        with pytest.raises(InputError, match=f"is being written by process {os.getpid()}"):
            RunLock(tmp_path)
    assert not is_locked(tmp_path)
