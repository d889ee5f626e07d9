"""The proof that a generator has the trainer's adapter: what is wrong is refused at the publish."""

from dataclasses import replace
from inspect import getattr_static

import pytest
import torch
from adapter_bench import (
    ADAPTER,
    FAULTS,
    Bench,
    ChannelRig,
    engine_spec,
    layout_of,
    no_fault,
    save_model,
    with_fault,
)

from scalerl.engine.adapter_proof import ProvenAdapter, checksum, proven, with_proof
from scalerl.engine.interface import Engine, ScoringEngine
from scalerl.engine.registry import ENGINES
from scalerl.engine.simulated import SimulatedEngine
from scalerl.engine.tensor_parallel import TensorParallelEngine
from scalerl.errors import InputError, PipelineError
from scalerl.models.adapter import PROOF
from scalerl.weights.registry import CHANNELS


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def rig():
    found = ChannelRig()
    yield found
    found.close()


def bench(model, fault=no_fault, channel=None, adapter=ADAPTER):
    engine = with_fault(ENGINES["local"](engine_spec(model, adapter)), fault)
    channel = channel or CHANNELS["shared-memory"](layout_of(model, adapter))
    return Bench(model, engine, channel, adapter)


class Counted:
    """Counts the calls of an engine's `score`."""

    def __init__(self, engine):
        self.calls, self.score = 0, engine.score
        engine.score = self

    def __call__(self, tokens):
        self.calls += 1
        return self.score(tokens)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "channel",
    ["shared-memory", "direct", "collective", pytest.param("ray", marks=pytest.mark.ray)],
)
def test_each_fault_is_refused_at_the_first_publish_by_name(model, fault, channel, rig):
    b = bench(model, fault, rig.channel(channel, layout_of(model)))
    b.publish()
    with pytest.raises(PipelineError, match=FAULTS[fault]) as caught:
        b.load()
    assert "\n" not in str(caught.value)
    b.close()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
def test_each_fault_of_an_unmerged_adapter_is_refused_at_the_first_publish_by_name(model, fault):
    b = bench(model, fault, adapter=replace(ADAPTER, merged=False))
    b.publish()
    with pytest.raises(PipelineError, match=FAULTS[fault]):
        b.load()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
def test_each_fault_is_refused_when_it_begins_later(model, fault):
    b = bench(model)
    for _ in range(3):
        b.publish()
        assert b.load() >= 0
    with_fault(b.engine, fault)
    b.publish()  # the fourth: three after the first
    with pytest.raises(PipelineError, match="the generator does not have the trainer's adapter"):
        b.load()


@pytest.mark.parametrize("merged", [True, False])
def test_the_engine_generates_with_each_adapter(model, merged):
    b = bench(model, adapter=replace(ADAPTER, merged=merged))
    for _ in range(5):
        b.publish()
        version = b.load()
        assert b.engine.health().version == version
        assert b.gap() < 1e-4
    b.publish()
    assert b.gap() > 1e-3, "the next adapter is another one"


def test_proofs_come_first_then_every_few_loads_and_after_a_new_trainer(model):
    b = bench(model)
    counted = Counted(b.engine)
    found = []
    for i in range(8):
        b.publish()
        if i == 5:
            b.generator.reset(b.receiver)  # another trainer takes over
        b.load()
        found.append(counted.calls)
        counted.calls = 0
    assert found == [2, 0, 0, 2, 0, 2, 0, 0]


def test_an_old_adapter_under_a_new_name_is_named(model):
    b = bench(model)
    for _ in range(3):
        b.publish()
        b.load()
    b.engine.load = lambda weights, version: None
    b.publish()
    with pytest.raises(PipelineError, match="it kept the adapter of version 2"):
        b.load()


class Wire:
    """A channel that changes what it carries."""

    across_processes = False

    def __init__(self, change):
        self.change, self.sent, self.version = change, {}, -1

    def sender(self):
        return self

    receiver = sender

    def publish(self, version, weights):
        self.sent = self.change({n: t.clone() for n, t in weights.items()}, self.sent)
        self.version = version

    def newest(self):
        return self.version

    def into(self, target):
        target.load(self.sent, self.version)
        return self.version


def half(new, old):
    return {n: t for i, (n, t) in enumerate(new.items()) if i % 2 or n == PROOF}


def bit(new, old):
    name = next(iter(new))
    new[name].flatten()[0] += 1e-6
    return new


def late(new, old):
    """The tensors of the version before under the proof of this one."""
    return {**old, PROOF: new[PROOF]} if old else new


def whole_old(new, old):
    return old or new


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (half, "14 of 28 tensors of the adapter are missing"),
        (bit, "its checksum is not that of what the trainer published"),
        (late, "its checksum is not that of what the trainer published"),
        (whole_old, "what arrived is the adapter of version 0"),
    ],
)
def test_what_the_channel_changes_is_refused_without_a_proof(model, change, why):
    engine = ENGINES["local"](engine_spec(model))
    b = Bench(model, engine, Wire(lambda new, old: new))
    b.publish()
    b.load()
    b.receiver.change = change
    b.publish()
    with pytest.raises(PipelineError, match=why):
        b.load()


def test_a_reader_that_was_overtaken_reads_again(model):
    """Half of an adapter and half of the next: refused by its checksum, and read again."""
    b = bench(model)
    b.publish()
    b.load()
    b.publish()
    target, calls = b.generator.target, []
    check = target._check_received

    def overtaken(given, version, proof):
        calls.append(version)
        if len(calls) == 1:
            for _ in range(2):  # into the buffer that is being read
                b.publish()
            given = {n: t + 1 for n, t in given.items()}
        check(given, version, proof)

    target._check_received = overtaken
    assert b.load() == 3 and calls == [1, 3]


def test_the_checksum_is_of_every_bit_and_name():
    one = {"a": torch.ones(3), "b": torch.zeros(2)}
    assert checksum(one) == checksum(dict(reversed(one.items())))
    assert checksum(one) != checksum({**one, "b": torch.tensor([0.0, 1e-30])})


def test_an_engine_that_cannot_prove_its_adapter_is_refused(model):
    with pytest.raises(InputError, match="has no method `score`"):
        proven(SimulatedEngine.from_spec(engine_spec(model)), engine_spec(model))
    assert isinstance(
        proven(ENGINES["local"](engine_spec(model)), engine_spec(model)), ProvenAdapter
    )


def test_a_generator_of_several_devices_can_prove_its_adapter():
    """Since Python 3.12 a runtime protocol does not see what `__getattr__` gives."""
    for protocol in (Engine, ScoringEngine):
        for name in vars(protocol):
            if callable(getattr(protocol, name)) and not name.startswith("_"):
                assert callable(getattr_static(TensorParallelEngine, name)), name


def test_scoring_leaves_rollouts_as_they_are(model):
    from scalerl.algorithm.length import Limit
    from scalerl.engine.interface import Request

    def rollouts(scores):
        engine = ENGINES["local"](engine_spec(model))
        engine.submit([Request("r", (1, 2, 3), Limit(20, ()), {0: 7, 1: 8})])
        out = []
        while engine.health().busy:
            out += engine.step().written
            if scores:
                engine.score(ADAPTER.probe)
        return [w.turn.token_ids.tolist() for w in sorted(out, key=lambda w: w.row)]

    assert rollouts(scores=True) == rollouts(scores=False)


def test_what_is_published_can_be_read_back(model):
    from scalerl.engine.adapter_proof import Proof
    from scalerl.models.adapter import AdapterProbe

    probe = AdapterProbe((-1.5, -2.5), (-3.0, -0.25), (-1.0, -2.0))
    sent = with_proof({"x.lora_A.weight": torch.randn(4)}, 1234567, probe)
    found = Proof.from_tensor(sent.pop(PROOF))
    assert (found.version, found.probe) == (1234567, probe)
    assert found.checksum == checksum(sent)
