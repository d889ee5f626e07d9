"""Samples of the machine: what they count, and what they leave out."""

import os
import shutil
import subprocess
import sys

import pytest

from scalerl.runs import system
from scalerl.runs.lines import Status, SystemLine
from scalerl.runs.store import RunStore
from scalerl.runs.system import SystemSampler

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

#: Two cards: the second one cannot be asked.
NVML = """
typedef struct { unsigned gpu, memory; } use_t;
typedef struct { unsigned long long total, free, used; } memory_t;
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { *d = (void *)(long)(i + 1); return 0; }
int nvmlDeviceGetUtilizationRates(void *d, use_t *u) {
    u->gpu = 75; u->memory = 3; return d == (void *)1 ? 0 : 3;
}
int nvmlDeviceGetMemoryInfo(void *d, memory_t *m) {
    m->total = 80ull << 30; m->free = 20ull << 30; m->used = 60ull << 30; return 0;
}
"""


@linux
def test_a_sample_of_this_machine_is_plausible():
    found = SystemSampler().sample(7, [os.getpid(), 2**22 + 1])
    assert found.step == 7 and 0.0 <= found.cpu <= 1.0 and found.cores == os.cpu_count()
    assert 0 < found.memory_run < found.memory_total
    assert 0 < found.memory_used < found.memory_total


def test_the_next_sample_is_due_later():
    sampler = SystemSampler()
    assert sampler.sample(1, []) is not None and sampler.sample(1, []) is None


def test_busy_is_the_share_since_the_sample_before(tmp_path, monkeypatch):
    monkeypatch.setattr(system, "PROC", tmp_path)
    sampler = SystemSampler()
    # user nice system idle iowait irq softirq steal, and guest, which is in user already
    for words, share in (("10 0 10 60 20 0 0 0 5", 0.2), ("40 0 10 120 30 0 0 0 5", 0.3)):
        (tmp_path / "stat").write_text(f"cpu  {words}\ncpu0 1 2 3\n")
        assert sampler._busy() == share
    (tmp_path / "stat").write_text("nothing of the kind\n")
    assert sampler._busy() is None


def test_a_machine_without_proc_or_cards_has_none(tmp_path, monkeypatch):
    monkeypatch.setattr(system, "PROC", tmp_path / "none")
    monkeypatch.setattr(system, "CARDS", tmp_path / "none")
    monkeypatch.setattr(system, "NVML", "no-such-library.so")
    system._nvml.cache_clear()
    found = SystemSampler().sample(1, [1])
    assert (found.cpu, found.memory_used, found.memory_run, found.gpus) == (None, None, None, ())
    system._nvml.cache_clear()


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_gpus_are_those_that_the_drivers_report(tmp_path, monkeypatch):
    """The calls and structures of NVIDIA's library, against one that is made here."""
    (tmp_path / "nvml.c").write_text(NVML)
    library = tmp_path / "nvml.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "nvml.c"], check=True)
    card = tmp_path / "cards" / "card0" / "device"
    card.mkdir(parents=True)
    files = {"gpu_busy_percent": 40, "mem_info_vram_used": 5, "mem_info_vram_total": 9}
    for name, value in files.items():
        (card / name).write_text(f"{value}\n")
    monkeypatch.setattr(system, "NVML", str(library))
    monkeypatch.setattr(system, "CARDS", tmp_path / "cards")
    system._nvml.cache_clear()
    nvidia, amd = system._gpus()
    system._nvml.cache_clear()
    assert (nvidia.busy, nvidia.memory_used, nvidia.memory_total) == (0.75, 60 << 30, 80 << 30)
    assert (amd.busy, amd.memory_used, amd.memory_total) == (0.4, 5, 9)


def test_a_status_adds_a_sample_where_there_are_processes(tmp_path):
    store = RunStore(tmp_path / "run")
    store.status(Status(step=1))
    assert not (store.path / SystemLine.FILE).exists()
    for step in (2, 3):
        store.status(Status(step=step, pids={"main": os.getpid()}))
    (found,) = store.read(SystemLine)
    assert found.step == 2 and found.time > 1e9


def test_samples_end_at_a_limit_of_their_file(tmp_path, monkeypatch):
    monkeypatch.setattr("scalerl.runs.store.MAX_BYTES", 1)
    monkeypatch.setattr(system, "SAMPLE_SECONDS", 0.0)
    store = RunStore(tmp_path / "run")
    for step in (1, 2):
        store.status(Status(step=step, pids={"main": os.getpid()}))
    assert [line.step for line in store.read(SystemLine)] == [1]
