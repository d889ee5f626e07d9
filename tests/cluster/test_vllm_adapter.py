"""Adapters in vLLM: every fault refused at the publish, and the trainer's log-probs."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))
from adapter_bench import (
    ADAPTER,
    CONFIG,
    FAULTS,
    Bench,
    ChannelRig,
    engine_spec,
    layout_of,
    no_fault,
    save_model,
    with_fault,
)

from scalerl.algorithm.length import Limit
from scalerl.engine.interface import Request
from scalerl.engine.registry import ENGINES
from scalerl.errors import InputError, PipelineError

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module", params=["merged", "unmerged"])
def made(request, tmp_path_factory):
    """One engine of each kind: it takes many seconds to start."""
    folder = save_model(tmp_path_factory.mktemp("model"))
    adapter = replace(ADAPTER, merged=request.param == "merged")
    return folder, adapter, ENGINES["vllm"](engine_spec(folder, adapter))


@pytest.fixture(scope="module")
def rig():
    found = ChannelRig()
    yield found
    found.close()


def bench(made, rig, fault=no_fault, channel="shared-memory"):
    folder, adapter, engine = made
    vars(engine).pop("load", None)  # the fault of an earlier test
    channel = rig.channel(channel, layout_of(folder))
    return Bench(folder, with_fault(engine, fault), channel, adapter)


@pytest.mark.parametrize("channel", ["shared-memory", "ray"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
def test_each_fault_is_refused_at_the_first_publish_by_name(made, rig, fault, channel):
    b = bench(made, rig, fault, channel)
    b.publish()
    with pytest.raises(PipelineError, match=FAULTS[fault]):
        b.load()
    b.close()


def test_vllm_has_each_adapter_also_when_it_is_given_twice(made, rig):
    b = bench(made, rig)
    for _ in range(4):
        b.publish()
        b.load()
        assert b.gap() < 1e-4
        b.load()  # vLLM scales B in place: 2B, 4B, 8B
        assert b.gap() < 1e-4


def test_a_checkpoint_in_vllm_itself_has_the_trainers_logprobs(made, rig, tmp_path):
    """Through its own loader of PEFT's files."""
    from vllm.lora.request import LoRARequest

    _, adapter, engine = made
    if adapter.merged:
        pytest.skip("vLLM's LoRA layers are off")
    b = bench(made, rig)
    for _ in range(3):
        b.publish()
    b.trainer.trainer.save(tmp_path)
    request = LoRARequest("saved", 2, str(tmp_path))
    own, engine.adapter.request = engine.adapter.request, request
    try:
        assert b.gap() < 1e-4
    finally:
        engine.adapter.request = own


def test_rollouts_go_on_with_the_next_adapter(made, rig):
    b = bench(made, rig)
    b.publish()
    b.load()
    b.engine.submit([Request("r", (1, 2, 3), Limit(12, ()), {0: 7})])
    written = []
    while not written:
        written += b.engine.step().written
        if b.engine.health().running and b.engine.version == 0 and b.engine._number:
            b.publish()
            b.load()
    turn = written[0].turn
    assert set(turn.versions.tolist()) == {0, 1}
    # The last token, by the trainer's model: its cache is of both versions, so that only the tokens
    # of the first are compared.
    first = [int(t) for t, v in zip(turn.token_ids, turn.versions, strict=True) if v == 0]
    ids = torch.tensor([[1, 2, 3, *first]])
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(made[0])(ids).logits[0, 2:-1]
    expected = torch.log_softmax(logits, -1).gather(1, ids[0, 3:, None])[:, 0]
    assert turn.logprobs[: len(first)].tolist() == pytest.approx(expected.tolist(), abs=1e-3)


def test_what_vllms_layers_do_not_adapt_is_refused(tmp_path):
    folder = save_model(tmp_path, CONFIG)
    with pytest.raises(InputError, match=r"adapter\.head is not adapted by vLLM's own layers"):
        ENGINES["vllm"](engine_spec(folder, replace(ADAPTER, merged=False, head=True)))
