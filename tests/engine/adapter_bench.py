"""A trainer and a generator with adapters in one process, over any channel, and faults of their
engine: what tests of the proof share."""

import time

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from scalerl.algorithm.episode import Episode, Group, Turn
from scalerl.algorithm.options import options_from_recipe
from scalerl.engine.interface import EngineSpec
from scalerl.models.adapter import (
    PROOF,
    AdapterSpec,
    probe_tokens,
    proof_size,
    shapes_of,
    targets_of,
)
from scalerl.placement.generator_worker import GeneratorWorker
from scalerl.placement.processes import HERE, LOOPBACK
from scalerl.placement.ray_cluster import patient_start
from scalerl.placement.trainer_worker import TrainerWorker
from scalerl.recipe import Recipe
from scalerl.recipe.sections_runtime import OptimiserSection
from scalerl.trainer.interface import TrainerSpec
from scalerl.trainer.registry import TRAINERS
from scalerl.trainer.rendezvous import rendezvous_store
from scalerl.weights.interface import Layout, close
from scalerl.weights.registry import CHANNELS
from scalerl.weights.version_registry import VersionRegistry

WORDS = 64
CONFIG = LlamaConfig(vocab_size=WORDS, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                     num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=256,
                     bos_token_id=None, eos_token_id=None)  # fmt: skip
ADAPTER = AdapterSpec(rank=4, alpha=8.0, probe=probe_tokens(WORDS, 128), proof_every=3)


def save_model(folder, config=CONFIG):
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return str(folder)


def engine_spec(model, adapter=ADAPTER, **more):
    return EngineSpec(model, "float32", "fp32", slots=4, validation_slots=2, columns=128,
                      device="cpu", trust_remote_code=False, adapter=adapter, **more)  # fmt: skip


def make_trainer(model, adapter=ADAPTER):
    fast = OptimiserSection(lr=3e-2, warmup_steps=1)
    return TRAINERS["local"](
        TrainerSpec(model, "float32", "fp32", options_from_recipe(Recipe()), fast, 1.0, 4096,
                    "cpu", False, adapter=adapter)
    )  # fmt: skip


def layout_of(model, adapter=ADAPTER):
    shape = AutoModelForCausalLM.from_pretrained(model)
    tensors = shapes_of(targets_of(shape, adapter), adapter.rank)
    tensors[PROOF] = (proof_size(adapter),)
    return Layout(tuple(tensors), tuple(tensors.values()), torch.float32)


def batch(seed=0):
    rng = np.random.default_rng(seed)
    groups = []
    for p in range(4):
        prompt = rng.integers(0, WORDS, 4)
        turns = [Turn.from_lists(rng.integers(0, WORDS, 8), logprobs=np.full(8, -4.0))
                 for _ in range(4)]  # fmt: skip
        episodes = [Episode.from_turn(prompt, t).with_reward(float(rng.standard_normal()), None)
                    for t in turns]  # fmt: skip
        groups.append(Group(f"p{p}", tuple(episodes)))
    return groups


class ChannelRig:
    """Channels by name, with what each needs around it; close it at the end."""

    def __init__(self):
        self._ray, self._stores = None, []

    def channel(self, name, layout):
        made = CHANNELS[name](layout)
        if name == "ray":
            made.registry = self._registry()
        if name == "collective":
            store, port = rendezvous_store(HERE)
            self._stores.append(store)
            made.set_rendezvous(HERE, port, LOOPBACK, "cpu")
        return made

    def _registry(self):
        import ray

        if self._ray is None:
            self._ray = ray
            with patient_start():
                ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        return ray.remote(num_cpus=0, max_concurrency=99)(VersionRegistry).remote()

    def close(self):
        if self._ray is not None:
            self._ray.shutdown()


class Bench:
    """`publish` makes a step and publishes; `load` makes the generator take what is newest."""

    def __init__(self, model, engine, channel, adapter=ADAPTER):
        self.trainer = TrainerWorker(
            make_trainer(model, adapter), channel.sender(), time.perf_counter, adapter
        )
        self.engine = engine
        self.receiver = channel.receiver()
        spec = engine_spec(model, adapter)
        self.generator = GeneratorWorker(
            engine, self.receiver, time.perf_counter, deterministic=False, spec=spec
        )

    def publish(self):
        version = self.trainer.trainer.version
        if self.receiver.newest() >= 0:
            self.trainer.trainer.step(batch(version))
        self.trainer._publish()
        until = time.monotonic() + 60
        while self.receiver.newest() < self.trainer.trainer.version:
            assert time.monotonic() < until
            time.sleep(0.01)

    def close(self):
        close(self.trainer.sender)
        close(self.receiver)

    def load(self):
        return self.receiver.into(self.generator.target)

    def gap(self):
        """Between the engine's log-probs of other tokens than the probe's, and the trainer's."""
        tokens = [(3 + 5 * i) % WORDS for i in range(12)]
        ours = self.trainer.trainer.scorer.score_probe(tokens)
        return max(abs(a - b) for a, b in zip(ours, self.engine.score(tokens), strict=True))


# -- faults: each wraps the `load` of an engine --------------------------------------------------


def no_fault(load):
    return load


def old_adapter_kept(load):
    """From its second adapter on, an engine reports success and changes nothing."""
    seen = []

    def broken(weights, version):
        seen.append(version)
        if len(seen) < 2:
            load(weights, version)

    return broken


def base_sampled(load):
    def broken(weights, version):
        load({n: torch.zeros_like(t) for n, t in weights.items()}, version)

    return broken


def gate_and_up_swapped(load):
    def broken(weights, version):
        other = {"gate_proj": "up_proj", "up_proj": "gate_proj"}
        out = {}
        for name in weights:
            source = ".".join(other.get(part, part) for part in name.split("."))
            out[name] = weights[source]
        load(out, version)

    return broken


def wrong_scale(load):
    """As in vLLM, which multiplies lora_B by the scale in place when it is given no copies."""

    def broken(weights, version):
        load({n: t * 2 if "lora_B" in n else t for n, t in weights.items()}, version)

    return broken


def half_missing(load):
    def broken(weights, version):
        kept = list(weights)[: len(weights) // 2]
        load({n: t if n in kept else torch.zeros_like(t) for n, t in weights.items()}, version)

    return broken


FAULTS = {
    old_adapter_kept: "it kept the adapter that it had before",
    base_sampled: "it generates with the base model",
    gate_and_up_swapped: "gate_proj and up_proj are exchanged",
    wrong_scale: "its scale is wrong",
    half_missing: "7 of 14 adapted layers are missing",
}


def with_fault(engine, fault):
    """The engine with a fault in `load`; undo it by deleting the attribute."""
    engine.load = fault(engine.load)
    return engine
