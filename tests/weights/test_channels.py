"""Weight channels: what a generator takes is whole and goes by its true number."""

import multiprocessing
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.multiprocessing

from scalerl.errors import InputError
from scalerl.weights import shared_memory
from scalerl.weights.direct import DirectWeights
from scalerl.weights.interface import Layout
from scalerl.weights.registry import CHANNELS
from scalerl.weights.shared_memory import SharedWeights

LAYOUT = Layout(("a", "b"), ((3,), (2, 2)), torch.float32)


def weights(value):
    return {"a": torch.full((3,), float(value)), "b": torch.full((2, 2), float(value))}


class Model:
    """Takes weights as an engine does: it copies."""

    def __init__(self, meanwhile=lambda: None):
        self.version = None
        self.loads = 0
        self.meanwhile = meanwhile

    def load(self, weights, version):
        self.a = weights["a"].clone()
        self.loads += 1
        self.meanwhile()
        self.b = weights["b"].clone()
        self.version = version

    def is_whole(self, value):
        return bool((self.a == value).all() and (self.b == value).all())


@pytest.fixture(params=["direct", "shared-memory"])
def channel(request):
    return CHANNELS[request.param](LAYOUT)


def test_before_any_weights_there_are_none(channel):
    model = Model()
    assert channel.receiver().newest() == -1
    assert channel.receiver().into(model) == -1 and model.loads == 0


def test_a_receiver_takes_the_newest_weights_and_passes_over_others(channel):
    sender, receiver, model = channel.sender(), channel.receiver(), Model()
    for version in range(5):
        sender.publish(version, weights(version))
    assert receiver.newest() == 4
    assert receiver.into(model) == 4 == model.version and model.is_whole(4)
    assert receiver.into(model) == 4, "they can be taken again"


def test_what_was_published_is_the_receivers_own(channel):
    mine = weights(1)
    channel.sender().publish(1, mine)
    mine["a"].fill_(9)
    model = Model()
    channel.receiver().into(model)
    assert model.is_whole(1)


def test_only_what_may_leave_a_process_says_so():
    assert SharedWeights.across_processes and not DirectWeights.across_processes


def test_an_unknown_channel_is_refused():
    with pytest.raises(InputError, match="weights channel"):
        CHANNELS["pigeon"]


# -- shared memory --------------------------------------------------------------------------------


def test_a_reader_that_is_overtaken_reads_again():
    """Two publications while it copies: the second writes into the buffer it reads from."""
    shared = SharedWeights(LAYOUT)
    shared.publish(0, weights(0))

    def overtake():
        if model.loads == 1:
            shared.publish(1, weights(1))
            shared.publish(2, weights(2))

    model = Model(overtake)
    assert shared.into(model) == 2 and model.loads == 2
    assert model.version == 2 and model.is_whole(2)


def test_one_publication_does_not_disturb_a_reader():
    shared = SharedWeights(LAYOUT)
    shared.publish(0, weights(0))
    model = Model(lambda: shared.publish(1, weights(1)))
    assert shared.into(model) == 0 and model.loads == 1 and model.is_whole(0)
    assert shared.newest() == 1


def test_a_writer_killed_in_the_middle_is_noticed_and_made_good():
    shared, model = SharedWeights(LAYOUT), Model()
    shared.publish(0, weights(0))
    for _ in range(2):
        with pytest.raises(KeyError):  # dies between two tensors
            shared.publish(1, {"a": torch.ones(3)})
        assert shared.newest() == 0 and shared.into(model) == 0 and model.is_whole(0)
    shared.publish(1, weights(1))
    assert shared.into(model) == 1 and model.is_whole(1)


def test_a_reader_that_is_overtaken_by_a_writer_that_dies_takes_the_other_buffer():
    shared = SharedWeights(LAYOUT)
    shared.publish(0, weights(0))

    def overtake():
        if model.loads == 1:
            shared.publish(1, weights(1))
            with pytest.raises(KeyError):
                shared.publish(2, {"a": torch.full((3,), 2.0)})

    model = Model(overtake)
    assert shared.into(model) == 1 and model.loads == 2 and model.is_whole(1)


def test_a_layout_is_that_of_the_models_parameters():
    model = torch.nn.Linear(3, 2)
    layout = Layout.of(model)
    assert layout.names == ("weight", "bias") and layout.shapes == ((2, 3), (2,))
    assert layout.size == 8 and layout.dtype == torch.float32
    flat = torch.arange(8.0)
    views = dict(layout.views(flat))
    assert views["weight"].tolist() == [[0, 1, 2], [3, 4, 5]] and views["bias"].tolist() == [6, 7]


def publish_elsewhere(channel):
    channel.sender().publish(7, weights(7))


def test_shared_weights_reach_another_process():
    shared, model = SharedWeights(LAYOUT), Model()
    process = multiprocessing.get_context("spawn").Process(target=publish_elsewhere, args=(shared,))
    process.start()
    process.join(120)
    assert process.exitcode == 0
    assert shared.receiver().into(model) == 7 and model.is_whole(7)


def test_weights_that_do_not_fit_the_shared_memory_are_refused_before_it_is_taken(monkeypatch):
    """Containers have 64 MB of it: writing more would end the process without a word."""
    large = Layout(("a",), ((10 * 2**20,),), torch.float32)
    found = SimpleNamespace(f_bavail=2**14, f_frsize=4096)
    monkeypatch.setattr(shared_memory.os, "statvfs", lambda path: found)
    with pytest.raises(InputError, match=r"need 80 MB of shared memory.* has 64 MB free.*shm-size"):
        SharedWeights(large)
    SharedWeights(LAYOUT)
    monkeypatch.setattr(shared_memory, "SHARED", Path("/nowhere"))  # a system without the directory
    SharedWeights(LAYOUT)


def test_a_run_in_a_container_with_little_shared_memory_ends_with_one_line(tmp_path):
    """A real file system of 64 kB in a namespace of our own."""
    inside = 'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"'
    prefix = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", inside, "sh"]
    if subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("this machine allows no namespaces of one's own")
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "scalerl", "train", "scalerl", "tiny", "--plain",
         "--out", str(tmp_path / "run")],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2, done.stdout + done.stderr
    assert "MB of shared memory, but /dev/shm has 0 MB free" in done.stderr
    assert len(done.stderr.splitlines()) == 1
