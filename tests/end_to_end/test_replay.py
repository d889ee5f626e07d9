"""Asynchrony is real: what was written while weights changed can be replayed.

The replay is a plain Hugging Face loop with a key-value cache that it keeps. A rollout's record
determines it wholly: token t was drawn from a forward pass under versions[t], which fed token t - 1
(for t = 0: the prompt). So the keys and values of token t - 1 are those of version versions[t], and
those of the prompt are of versions[0]. Stored log-probs must agree to 1e-4 per token.
"""

import copy
from itertools import groupby

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    GPT2Config,
    LlamaConfig,
    Qwen3MoeConfig,
)

from scalerl.algorithm.episode import Turn
from scalerl.algorithm.length import EndOfThought, Interruption, Limit
from scalerl.engine.interface import Request, Sampling
from scalerl.engine.local import LocalEngine
from scalerl.models.load import model_path
from scalerl.recipe import Recipe
from scalerl.runs.listener import Listener
from scalerl.training import train
from scalerl.weights.interface import Layout
from scalerl.weights.shared_memory import SharedWeights

TOLERANCE = 1e-4
#: A replay by a wrong rule must be off by far more than a right one may.
WRONG = 100 * TOLERANCE
VOCABULARY = 40
SMALL = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2,
         "num_attention_heads": 4, "max_position_embeddings": 256, "initializer_range": 0.3,
         "pad_token_id": None, "eos_token_id": None, "bos_token_id": None}  # fmt: skip
CONFIGS = {
    "llama": LlamaConfig(**SMALL, intermediate_size=64, num_key_value_heads=2),
    "gpt2": GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=256,
                       initializer_range=0.3, bos_token_id=None, eos_token_id=None),
    "qwen3-moe": Qwen3MoeConfig(**SMALL, head_dim=8, intermediate_size=64, num_key_value_heads=2,
                                moe_intermediate_size=24, num_experts=4, num_experts_per_tok=2,
                                norm_topk_prob=True),
}  # fmt: skip


@torch.no_grad()
def replay(models, prompt, tokens, versions, temperature=1.0):
    """Log-probs of `tokens`, each from a pass under its version over the cache of earlier ones;
    neighbours of one version share a pass."""
    cache, found, at = DynamicCache(), [], 0
    fed = [*map(int, prompt), *tokens]
    for version, run in groupby(versions):
        drawn = len(list(run))
        upto = len(prompt) + len(found) + drawn - 1
        ids = torch.tensor([fed[at:upto]])
        logits = models[version](ids, past_key_values=cache, use_cache=True).logits[0, -drawn:]
        logprobs = torch.log_softmax(logits.float() / temperature, -1)
        found += logprobs[range(drawn), fed[upto - drawn + 1 : upto + 1]].tolist()
        at = upto
    return np.array(found)


def gap(models, prompt, rollout, versions=None, temperature=1.0):
    """The largest |stored - replayed| log-prob of the tokens that the policy wrote."""
    versions = rollout.versions if versions is None else versions
    found = replay(models, prompt, rollout.token_ids.tolist(), versions.tolist(), temperature)
    return float(np.abs(found - rollout.logprobs)[~rollout.forced].max(initial=0.0))


def turns_of(groups):
    """Prompt and turn of every episode of one turn."""
    for episode in (e for group in groups for e in group.episodes):
        (row,) = episode.rows
        n = len(row.prompt)
        yield (
            row.prompt,
            Turn(
                row.token_ids[n:], row.logprobs[n:], row.versions_N[n:], ~row.policy_N[n:], "stop"
            ),
        )


def changes(rollout):
    return len(set(rollout.versions.tolist())) - 1


def perturbed(model, version):
    """The model with every one of its tensors changed."""
    torch.manual_seed(100 + version)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(torch.randn_like(p) * (0.1 * p.std().nan_to_num() + 0.02))
    assert all(
        not torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True)
    )
    return other


@pytest.fixture(scope="module", params=CONFIGS)
def in_flight(request):
    """Fifteen rollouts through four rows, weights 0 .. 4 handed over as a run hands them over."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[request.param]).eval()
    models = {0: model} | {v: perturbed(model, v) for v in range(1, 5)}
    shared = SharedWeights(Layout.from_model(model))
    engine = LocalEngine(copy.deepcopy(model), slots=4, columns=80)
    rng = np.random.default_rng(3)
    asked = {}
    for i in range(15):
        prompt = tuple(rng.integers(0, VOCABULARY, rng.integers(1, 12)).tolist())
        end = EndOfThought.from_text("</>", [b"x"] * 9 + [b" <", b"/>"])
        interrupted = Interruption((7, 9, 10), end, think_min=4, think_max=20, answer_tokens=12)
        control = interrupted if i % 3 else Limit(int(rng.integers(2, 40)))
        how = Sampling(temperature=0.7 if i % 5 == 0 else 1.0)
        asked[f"r{i}"] = Request(f"r{i}", prompt, control, {0: i}, how)
    requests, done = list(asked.values()), {}
    engine.submit(requests[:7])
    for step in range(1000):
        if step and step % 11 == 0 and engine.version < 4:
            shared.publish(engine.version + 1, dict(models[engine.version + 1].named_parameters()))
            shared.into(engine)
        if step == 15:
            engine.submit(requests[7:])
        done |= {w.request: w.turn for w in engine.step().written}
        if len(done) == len(asked):
            break
    return models, asked, done


def test_each_token_follows_from_the_version_it_names_and_the_cache_that_was_kept(in_flight):
    models, asked, done = in_flight
    for key, written in done.items():
        request = asked[key]
        off = gap(models, request.prompt_token_ids, written,
                  temperature=request.sampling.temperature)  # fmt: skip
        assert off < TOLERANCE, key


def test_the_rollouts_really_were_in_flight_and_interrupted(in_flight):
    _, _, done = in_flight
    assert len(done) == 15
    assert max(changes(w) for w in done.values()) >= 2
    assert sum(changes(w) > 0 for w in done.values()) >= 5
    assert set(np.concatenate([w.versions for w in done.values()])) == {0, 1, 2, 3, 4}
    mixed = [w for w in done.values() if w.forced.any() and changes(w)]
    assert len(mixed) >= 2
    assert all((w.logprobs[w.forced] == 0).all() for w in mixed)
    assert all((np.diff(w.versions) >= 0).all() for w in done.values())


def test_a_replay_by_any_other_rule_is_far_off(in_flight):
    """One version for all tokens; keys and values of the version that drew the token rather than of
    the one that read it; keys and values computed anew after a change."""
    models, asked, done = in_flight
    chosen = {
        name: w for name, w in done.items() if changes(w) and asked[name].sampling.temperature == 1
    }
    wrong = {"first version": [], "last version": [], "read by the drawer": []}
    for name, w in chosen.items():
        prompt = asked[name].prompt_token_ids
        for rule, version in (("first version", w.versions[0]), ("last version", w.versions[-1])):
            wrong[rule].append(gap(models, prompt, w, np.full(len(w.versions), version)))
        early = np.concatenate([w.versions[:1], w.versions[:-1]])
        wrong["read by the drawer"].append(gap(models, prompt, w, early))
    assert all(max(off) > WRONG for off in wrong.values()), wrong


#: Channels that runs of this process have made.
MADE = []


def watched(layout):
    """The channel of any run on this machine, which the test can look into as well."""
    MADE.append(SharedWeights(layout))
    return MADE[-1]


class Witness(Listener):
    """Remembers batches, with the trainer's version, and the weights of every version. (The trainer
    waits for its next batch while a step or a validation is told of.)"""

    def __init__(self):
        self.batches, self.weights = [], {}

    def load(self, weights, version):
        """As an engine takes weights."""
        self.weights[version] = {name: value.clone() for name, value in weights.items()}

    def batch(self, groups):
        self.batches.append((max(self.weights), groups))

    def step(self, line):
        assert MADE[-1].into(self) == line.step

    def evaluated(self, line, look):
        assert MADE[-1].into(self) == line.version


@pytest.fixture(scope="module")
def real_run(tmp_path_factory):
    """A pipeline-3 run with its processes: the batches it trained on, and the weights of every
    version. The learning rate is high, so that versions differ by much."""
    recipe = Recipe.load(
        "scalerl",
        "tiny",
        overrides=["batch.prompts=4", "batch.generations=4", "schedule.k=3", "budget.steps=8",
                   "optimiser.lr=3e-3", "optimiser.warmup_steps=0", "validation.prompts=8",
                   "validation.k=1", "validation.every=100", "task.options.prompts=200",
                   "placement.weights=test_replay:watched"],
    )  # fmt: skip
    witness = Witness()
    train(recipe, tmp_path_factory.mktemp("replay") / "run", listener=witness)
    batches, weights = witness.batches, witness.weights
    models = {}
    for version, values in weights.items():
        model = AutoModelForCausalLM.from_pretrained(model_path("tiny"), dtype=torch.float32)
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(values[name])
        models[version] = model.eval()
    return models, batches


def test_every_token_a_run_has_trained_on_can_be_replayed(real_run):
    models, batches = real_run
    assert sorted(models) == list(range(9))
    tokens = 0
    for _, groups in batches:
        for prompt, turn in turns_of(groups):
            assert gap(models, prompt, turn) < TOLERANCE
            tokens += int((~turn.forced).sum())
    assert len(batches) == 8 and tokens > 8 * 16 * 10


def test_the_run_trained_on_rollouts_of_mixed_and_bounded_versions(real_run):
    _, batches = real_run
    turns = [(version, t) for version, groups in batches for _, t in turns_of(groups)]
    assert sum(changes(t) > 0 for _, t in turns) >= 10
    assert all(0 <= version - t.versions.min() <= 3 for version, t in turns)


def test_the_runs_own_rollouts_tell_versions_apart(real_run):
    models, batches = real_run
    off = [
        gap(models, prompt, turn, np.full(len(turn), turn.versions[-1]))
        for _, groups in batches
        for prompt, turn in turns_of(groups)
        if changes(turn)
    ]
    assert max(off) > WRONG
