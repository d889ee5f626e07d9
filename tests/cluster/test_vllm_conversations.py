"""Eight turns with published tokenizers and templates through vLLM: `make vllm`."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end"))
from conversations import check_sampled, play, sampling_setup

from scalerl.engine.registry import ENGINES
from scalerl.placement.specs import engine_spec

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize("family", ["Qwen2.5", "Qwen3", "Llama-3", "SmolLM2"])
def test_eight_sampled_turns_are_trained_on_as_vllm_saw_them(tokenizers, tmp_path, family):
    setup = sampling_setup(tmp_path, tokenizers(family))
    engine = ENGINES["vllm"](replace(engine_spec(setup), slots=3, validation_slots=1))
    played = play(setup, engine, episodes=3)
    model = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert (check_sampled(setup, played, model) > 0) == (family == "Qwen3")
    assert {turn.finish for log in played.log.values() for _, turn in log} == {"stop", "length"}
