"""Weight channels: what a generator takes is whole and goes by its true number."""

import multiprocessing.connection
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.multiprocessing

from scalerl.errors import InputError, PipelineError
from scalerl.placement.processes import LOOPBACK
from scalerl.trainer.rendezvous import rendezvous_store
from scalerl.weights import shared_memory
from scalerl.weights.interface import DirectWeights, Layout
from scalerl.weights.registry import CHANNELS
from scalerl.weights.shared_memory import SharedWeights
from scalerl.weights.streaming import StreamedWeights

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
    layout = Layout.from_model(model)
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
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 2, done.stdout + done.stderr
    assert "MB of shared memory, but /dev/shm has 0 MB free" in done.stderr
    assert len(done.stderr.splitlines()) == 1


# -- collectives ----------------------------------------------------------------------------------


def broadcast_taker(channel, name, told):
    """A generator's process: says each version that it has taken whole."""
    multiprocessing.current_process().name = name
    receiver, model, seen = channel.receiver(), Model(), -1
    while True:
        if receiver.newest() != seen:
            seen = receiver.into(model)
            told.send((name, seen, model.is_whole(seen)))
        time.sleep(0.005)


class Takers:
    """Processes that take weights from a channel of this process. Each has a pipe of its own: the
    lock of a queue for all would stay with one that is stopped as it lets go of it."""

    def __init__(self):
        self.store, port = rendezvous_store("127.0.0.1")
        self.channel = CHANNELS["collective"](LAYOUT)
        self.channel.set_rendezvous("127.0.0.1", port, LOOPBACK, "cpu")
        self.context = torch.multiprocessing.get_context("spawn")
        self.told, self.running = [], {}

    def start(self, name):
        ours, its = self.context.Pipe(duplex=False)
        process = self.context.Process(
            target=broadcast_taker, args=(self.channel, name, its), daemon=True
        )
        process.start()
        its.close()
        self.told.append(ours)
        self.running[name] = process

    def hear(self, version, *names, seconds=180):
        """Until each of these has taken this version, whole."""
        missing, end = set(names), time.monotonic() + seconds
        while missing:
            ready = multiprocessing.connection.wait(self.told, max(end - time.monotonic(), 0))
            assert ready, f"{missing} never took version {version}"
            for pipe in ready:
                try:
                    name, seen, whole = pipe.recv()
                except EOFError:  # it was killed
                    self.told.remove(pipe)
                    continue
                assert whole
                missing -= {name} if seen == version else set()


@pytest.fixture
def takers():
    found = Takers()
    yield found
    for process in found.running.values():
        process.kill()
        process.join()


def test_a_broadcast_reaches_all_and_whoever_joins(takers):
    sender = takers.channel.sender()
    try:
        sender.publish(0, weights(0))  # before anybody is there
        takers.start("generator 0")
        takers.start("generator 1")
        takers.hear(0, "generator 0", "generator 1")
        for version in range(1, 20):
            sender.publish(version, weights(version))
        takers.hear(19, "generator 0", "generator 1")
        takers.start("generator 2")
        takers.hear(19, "generator 2")  # without any new weights
        sender.publish(20, weights(20))
        takers.hear(20, *takers.running)
        assert sender.notes == []
    finally:
        sender.close()


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_a_broadcast_goes_on_without_one_that_is_gone_and_names_it(takers, how):
    sender = takers.channel.sender()
    try:
        for name in ("generator 0", "generator 1", "generator 2"):
            takers.start(name)
        sender.publish(0, weights(0))
        takers.hear(0, *takers.running)
        os.kill(takers.running["generator 1"].pid, getattr(signal, how))
        sender.publish(1, weights(1))
        takers.hear(1, "generator 0", "generator 2")
        (note,) = sender.notes
        assert note.startswith("weights: generator 1 did not answer within 5 s")
        if how == "SIGSTOP":  # it comes back
            os.kill(takers.running["generator 1"].pid, signal.SIGCONT)
        else:  # it is replaced
            takers.start("generator 1")
        takers.hear(1, "generator 1")
        sender.publish(2, weights(2))
        takers.hear(2, *takers.running)
    finally:
        sender.close()


#: 200 MB: a tensor of many pieces, one of a few, and small ones that travel together.
LARGE = Layout(
    ("large", *map(str, range(9)), "last"),
    ((36 << 20,), *((5, 7),) * 9, (14 << 20,)),
    torch.float32,
)


class LiveModel:
    """Weights that are written in place as they arrive, as in the local engine."""

    def __init__(self, dtype=torch.float32):
        self.own = {
            n: torch.zeros(s, dtype=dtype) for n, s in zip(LARGE.names, LARGE.shapes, strict=True)
        }

    def load(self, weights, version):
        weights.write_into(self.own)

    def holds(self, value):
        # Of some elements: a comparison of all would take memory of its own.
        return all(bool((t.view(-1)[::997] == value).all()) for t in self.own.values())


def peak_taker(channel, told, rounds):
    """A receiver's process: the peak of its memory above what it had before its model, in bytes."""
    receiver = channel.receiver()

    def memory(key):
        text = Path("/proc/self/status").read_text()
        return 1024 * int(next(x for x in text.splitlines() if x.startswith(key)).split()[1])

    before = memory("VmRSS")
    model = LiveModel()
    for version in range(rounds):
        while receiver.newest() < version:
            time.sleep(0.005)
        assert receiver.into(model) == version and model.holds(version)
        told.send(version)
    told.send(memory("VmHWM") - before)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_a_receiver_of_a_broadcast_has_no_second_copy_of_the_weights(takers):
    takers.channel.layout = LARGE
    ours, theirs = takers.context.Pipe(duplex=False)
    process = takers.context.Process(
        target=peak_taker, args=(takers.channel, theirs, 3), daemon=True
    )
    process.start()
    takers.running["generator 0"] = process
    sender = takers.channel.sender()
    try:
        for version in range(3):
            sender.publish(
                version,
                {
                    n: torch.full(s, float(version))
                    for n, s in zip(LARGE.names, LARGE.shapes, strict=True)
                },
            )
            assert ours.poll(120) and ours.recv() == version
        assert ours.poll(120)
        # A tenth for what the allocator keeps; one more copy would be 2.
        assert ours.recv() / (4 * LARGE.size) < 1.15
    finally:
        sender.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_that_arrive_are_read_once_in_any_way(dtype):
    """In place, with a conversion, tensor by tensor, or not at all."""
    flat = torch.arange(LARGE.size, dtype=torch.float32) % 1000
    wanted = dict(LARGE.views(flat))

    def arriving():
        at = 0

        def receive(piece):
            nonlocal at
            # Not by torch, which would count the change: a process group does not either.
            piece.numpy()[:] = flat[at : at + len(piece)].numpy()
            at += len(piece)

        return StreamedWeights(LARGE, "cpu", receive), lambda: at

    stream, _ = arriving()
    model = LiveModel(dtype)
    versions = {n: t._version for n, t in model.own.items()}
    stream.write_into(model.own)
    assert all(torch.equal(model.own[n], t.to(dtype)) for n, t in wanted.items())
    assert all(t._version > versions[n] for n, t in model.own.items()), "decoders see the change"
    stream, _ = arriving()
    assert stream.shapes == {n: tuple(t.shape) for n, t in wanted.items()}
    for name, tensor in stream.items():
        assert torch.equal(tensor, wanted[name])
    with pytest.raises(PipelineError, match="read once, in order"):
        stream["large"]
    stream, received = arriving()
    assert "large" in stream and received() == 0
    stream.finish()
    assert received() == LARGE.size


def test_a_set_that_breaks_off_is_received_again(takers):
    """One of two members is killed in the middle: the other loads no mixture, but the next set."""
    takers.channel.layout = LARGE
    sender = takers.channel.sender()
    receivers = [takers.channel.receiver() for _ in range(2)]

    class Dies:
        def load(self, weights, version):
            weights["large"]
            raise KeyboardInterrupt  # its process is gone

    whole = {n: torch.full(s, 1.0) for n, s in zip(LARGE.names, LARGE.shapes, strict=True)}
    sender.publish(0, whole)
    model, found = LiveModel(), []
    try:
        for receiver in receivers:
            while receiver.newest() < 0:
                time.sleep(0.005)

        def lose():
            receiver = receivers[1]
            finish, StreamedWeights.finish = StreamedWeights.finish, lambda self: None
            try:
                receiver.into(Dies())
            except KeyboardInterrupt:
                receiver.leave_group()
                receiver.closed = True
            finally:
                StreamedWeights.finish = finish

        thread = threading.Thread(target=lose)
        thread.start()
        found.append(receivers[0].into(model))
        thread.join()
        assert found == [0] and model.holds(1.0)
    finally:
        sender.close()
        receivers[0].close()


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about a machine without a GPU")
def test_a_channel_between_processes_on_one_gpu_is_refused_without_one():
    with pytest.raises(InputError, match=r"this machine has none: set placement.weights=auto"):
        CHANNELS["cuda-ipc"](LAYOUT)
