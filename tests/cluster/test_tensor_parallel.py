"""A generator of two devices: vLLM's tensor parallel on its CPU build (`make vllm`)."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))
from adapter_bench import ADAPTER, FAULTS, Bench, layout_of, no_fault, with_fault
from test_vllm_engine import FORCE, TOLERANCE, folder, replayed, requests_of, versions_of, write

from scalerl.engine.interface import EngineSpec
from scalerl.engine.registry import ENGINES
from scalerl.errors import PipelineError
from scalerl.weights.registry import CHANNELS

pytestmark = pytest.mark.vllm
__all__ = ["folder"]


def spec_of(model):
    return EngineSpec(str(model), "float32", "fp32", slots=8, validation_slots=4, columns=128,
                      device="cpu", trust_remote_code=False, devices=2)  # fmt: skip


def in_a_process(program, *arguments):
    """Run a function of this module in a process of its own, as a generator is: vLLM has one
    default process group a process."""
    code = f"import sys; from test_tensor_parallel import {program} as f; f(*sys.argv[1:])"
    paths = [str(Path(__file__).parent), *sys.path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], text=True,
                            env=environment, stdout=subprocess.PIPE)  # fmt: skip


def replay_all(model):
    """Write with two shards through changes of weights, and replay every token by one model."""
    engine = ENGINES["vllm"](spec_of(model))
    attention = engine.runner.get_model().model.layers[0].self_attn
    assert (attention.num_heads, attention.total_num_heads) == (1, 2), "this shard has half"
    models = versions_of(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32))
    requests = {r.id: r for r in requests_of(FORCE)}
    found = write(engine, models, requests.values())
    assert len(found) == 9 and any(w.turn.forced.any() for w in found)
    assert sum(len(set(w.turn.versions.tolist())) > 1 for w in found) > 3
    assert replayed(models, requests, found) < TOLERANCE


@pytest.mark.parametrize("name", ["tied", "untied"])
def test_two_shards_write_what_one_model_gives(folder, name):
    process = in_a_process("replay_all", folder / name)
    assert process.wait(900) == 0


def prove(model, mode):
    """Two shards with each of some adapters, and with faults, which all must be refused."""
    adapter = replace(ADAPTER, merged=mode == "merged")
    spec = replace(spec_of(model), adapter=adapter)
    engine = ENGINES["vllm"](spec)
    for fault in (*FAULTS, no_fault):
        vars(engine).pop("load", None)
        channel = CHANNELS["shared-memory"](layout_of(model, adapter))
        b = Bench(model, with_fault(engine, fault), channel, adapter)
        b.publish()
        if fault is no_fault:
            break
        with pytest.raises(PipelineError, match=FAULTS[fault]):
            b.load()
        print(f"refused: {fault.__name__}", flush=True)
    for _ in range(3):
        b.load()
        assert b.gap() < 1e-4
        b.publish()
    assert len(b.generator.target.proofs) >= 1
    print("proven", flush=True)


@pytest.mark.parametrize("mode", ["merged", "unmerged"])
def test_two_shards_prove_their_adapter_and_refuse_each_fault(folder, mode):
    process = in_a_process("prove", folder / "tied", mode)
    out, _ = process.communicate(timeout=1800)
    assert process.returncode == 0
    assert out.split("\n")[-2] == "proven" and out.count("refused: ") == len(FAULTS)


def wait_for_ever(model):
    engine = ENGINES["vllm"](spec_of(model))
    assert not list(Path("/dev/shm").glob("*cpushm*")), "nothing that a kill would leave behind"
    print("ready", engine._shards[0]._process.pid, flush=True)
    while True:
        time.sleep(1)


def test_a_generator_ends_with_any_of_its_shards(folder):
    for victim in (0, 1):
        process = in_a_process("wait_for_ever", folder / "untied")
        line = process.stdout.readline()
        assert line.startswith("ready"), line
        pids = [process.pid, int(line.split()[1])]
        os.kill(pids[victim], signal.SIGKILL)
        assert process.wait(120) != 0
        deadline = time.monotonic() + 60
        while Path(f"/proc/{pids[1]}").exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_a_model_that_cannot_be_split_is_one_line(folder):
    from scalerl.errors import InputError

    with pytest.raises(InputError, match="vLLM cannot serve"):
        ENGINES["vllm"](replace(spec_of(folder / "tied"), devices=3))


@pytest.mark.ray
def test_a_run_on_ray_with_a_generator_of_two_devices(tmp_path):
    settings = ["placement.backend=ray", "placement.engine=vllm", "placement.trainers=1",
                "placement.generators=1", "placement.devices_per_generator=2",
                "placement.checkers=1", "placement.patience=900", "batch.prompts=8",
                "batch.generations=8", "validation.prompts=16", "validation.k=2",
                "validation.also_temperatures=[]", "filter.empty_steps=0"]  # fmt: skip
    command = [sys.executable, "-m", "scalerl", "train", "scalerl", "tiny", *settings]
    done = subprocess.run(
        [*command, "--steps", "4", "--out", str(tmp_path / "run")],
        capture_output=True, text=True, timeout=1800, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    steps = [json.loads(line) for line in (tmp_path / "run" / "steps.jsonl").open()]
    fresh = [s for s in steps if s["staleness"]["max"] == 0]
    assert fresh and all(s["logprob_gap"]["max"] < 1e-3 for s in fresh)
    assert any(s["mixed_versions"] > 0 for s in steps), "weights change in flight"
    spent = steps[-1]["ledger"]["spent"]
    generating = sum(spent[k] for k in ("generate", "hand_over", "generate_wait"))
    training = spent["train"] + spent["train_wait"]
    assert generating == pytest.approx(2 * training, rel=0.05), "two devices and one"
