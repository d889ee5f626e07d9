"""How many cores a run is for."""

import os

import pytest

from scalerl.machine import CORES, cores


@pytest.mark.parametrize(("told", "found"), [("1", 1), ("0", 1), ("1000", None), ("many", None)])
def test_fewer_cores_where_it_is_told_so_and_never_more_than_there_are(monkeypatch, told, found):
    monkeypatch.delenv(CORES, raising=False)
    mine = cores()
    monkeypatch.setenv(CORES, told)
    assert cores() == (mine if found is None else found)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_cores_that_the_process_may_not_use_do_not_count(monkeypatch):
    monkeypatch.delenv(CORES, raising=False)
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert cores() == 1
    finally:
        os.sched_setaffinity(0, before)
