import os
import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))


@pytest.fixture(autouse=True)
def no_member_outlives_its_test(tmp_path_factory):
    """A test that fails in the middle leaves runs behind, which would slow down all others."""
    yield
    from faults import marked

    for pid in marked(tmp_path_factory.getbasetemp()):
        os.kill(pid, signal.SIGKILL)
