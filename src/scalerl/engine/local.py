"""The local engine: continuous batching over any Hugging Face causal LM, on a CPU or one GPU.

Requests join and leave between decode steps; weights change between decode steps; the key-value
cache is kept. Each step costs one forward pass of one token per running request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from scalerl.algorithm.length import Continue, Finish, Force, Progress
from scalerl.engine.interface import Health, Request, Written
from scalerl.engine.sampling import sample, uniform
from scalerl.engine.slots import Slots
from scalerl.errors import InputError


@dataclass(slots=True, eq=False)
class Running:
    """A request with a row in the cache."""

    request: Request
    progress: Progress
    #: Tokens that may be drawn before the length control must be asked again.
    room: int = 0
    #: Forced tokens that are still to be fed to the model.
    forcing: deque[int] = field(default_factory=deque)
    #: How many of `tokens` the length control has seen.
    told: int = 0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    forced: list[bool] = field(default_factory=list)

    def append(self, token: int, logprob: float, version: int, forced: bool) -> None:
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        self.forced.append(forced)

    def ask(self) -> Finish | None:
        """Tell the length control what is new, and do what it says."""
        control = self.request.control
        self.progress = self.progress.after(control, self.tokens[self.told :])
        self.told = len(self.tokens)
        decision = control.decide(self.progress)
        if isinstance(decision, Finish):
            return decision
        if isinstance(decision, Force):
            self.forcing.extend(decision.token_ids)
            return None
        assert isinstance(decision, Continue)
        self.room = decision.room
        return None

    def written(self, finish: Finish | None) -> Written:
        import numpy as np

        return Written(
            id=self.request.id,
            token_ids=np.asarray(self.tokens, dtype=np.int64),
            logprobs=np.asarray(self.logprobs, dtype=np.float32),
            versions=np.asarray(self.versions, dtype=np.int64),
            forced=np.asarray(self.forced, dtype=bool),
            finish=None if finish is None else finish.reason,
        )


class LocalEngine:
    """An Engine over a model in this process.

    slots    requests that run at once
    columns  longest prompt plus answer, in tokens
    """

    def __init__(
        self, model: nn.Module, *, slots: int = 64, columns: int = 2048, version: int = 0
    ) -> None:
        self.model: Any = model.eval()
        config: Any = model.config
        self.device = next(model.parameters()).device
        self.columns = columns
        self.slots = Slots(config.num_hidden_layers, slots, columns + 1, self.device)
        self.version = version
        self.waiting: deque[Request] = deque()
        self.running: list[Running] = []
        self.written_tokens = 0

    def submit(self, requests: Iterable[Request]) -> None:
        for request in requests:
            n = len(request.prompt_token_ids)
            if n == 0:
                raise InputError(f"request {request.id}: an empty prompt cannot be continued")
            if n + request.control.max_tokens > self.columns:
                raise InputError(
                    f"request {request.id}: a prompt of {n} tokens and an answer of up to "
                    f"{request.control.max_tokens} do not fit the engine's {self.columns}"
                )
            self.waiting.append(request)

    @torch.inference_mode()
    def step(self) -> list[Written]:
        finished = self._admit()
        if self.running:
            self.slots.make_room()
            last = torch.tensor([r.tokens[-1] for r in self.running], device=self.device)
            output = self.model(
                input_ids=last[:, None],
                attention_mask=self.slots.mask(),
                position_ids=self.slots.lengths_B[:, None],
                past_key_values=self.slots.cache,
                use_cache=True,
                logits_to_keep=1,
            )
            self.slots.wrote_one()
            finished += self._advance(self.running, output.logits[:, -1])
        return finished

    def load_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        own = dict(self.model.named_parameters())
        own |= {k: v for k, v in self.model.named_buffers() if k in weights}
        missing = own.keys() - weights.keys()
        if missing or weights.keys() - own.keys():
            wrong = sorted(missing | (weights.keys() - own.keys()))
            raise InputError(f"weights do not fit the model: {', '.join(wrong[:3])} ...")
        with torch.no_grad():
            for name, value in weights.items():
                own[name].copy_(value)
        self.version = version

    def abort(self, ids: Sequence[str]) -> list[Written]:
        gone = set(ids)
        out = [r.written(None) for r in self.running if r.request.id in gone]
        self._leave([r.request.id in gone for r in self.running])
        self.waiting = deque(r for r in self.waiting if r.id not in gone)
        return out

    def health(self) -> Health:
        return Health(self.version, len(self.waiting), len(self.running), self.written_tokens)

    def _admit(self) -> list[Written]:
        """Read the prompts of waiting requests, as many as there are free rows, and draw their
        first tokens."""
        free = self.slots.rows_max - len(self.running)
        new: list[Running] = []
        finished: list[Written] = []
        while self.waiting and len(new) < free:
            request = self.waiting.popleft()
            running = Running(request, request.control.start(request.seed))
            done = running.ask()
            if done is None:
                new.append(running)
            else:  # no token may be written at all
                finished.append(running.written(done))
        if new:
            lengths = torch.tensor([len(r.request.prompt_token_ids) for r in new])
            ids, mask = _left_padded([r.request.prompt_token_ids for r in new])
            cache = DynamicCache()
            output = self.model(
                input_ids=ids.to(self.device),
                attention_mask=mask.to(self.device),
                position_ids=(mask.cumsum(dim=1) - 1).clamp(min=0).to(self.device),
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            self.slots.join(cache, lengths.to(self.device))
            first = len(self.running)
            self.running += new
            finished += self._advance(new, output.logits[:, -1], first)
        return finished

    def _advance(self, rows: list[Running], logits_BV: Tensor, first: int = 0) -> list[Written]:
        """One token for each of these rows (which begin at `first`): forced, or drawn."""
        tokens, logprobs = self._draw(rows, logits_BV)
        gone: list[bool] = [False] * len(self.running)
        finished = []
        for i, (row, token, logprob) in enumerate(zip(rows, tokens, logprobs, strict=True)):
            done = None
            if row.forcing:
                row.append(row.forcing.popleft(), 0.0, self.version, forced=True)
                if not row.forcing:
                    done = self._told_forced(row)
            else:
                row.append(token, logprob, self.version, forced=False)
                row.room -= 1
                if row.room <= 0 or token in row.request.control.stop_ids:
                    done = row.ask()
            if done is not None:
                finished.append(row.written(done))
                gone[first + i] = True
        self.written_tokens += len(rows)
        if finished:
            self._leave(gone)
        return finished

    def _told_forced(self, row: Running) -> Finish | None:
        """The whole phrase is in: it counts as forced, and the length control is asked again."""
        control = row.request.control
        row.progress = row.progress.after(control, row.tokens[row.told :], forced=True)
        row.told = len(row.tokens)
        return row.ask()

    def _draw(self, rows: list[Running], logits_BV: Tensor) -> tuple[list[int], list[float]]:
        def column(values: Iterable[float], dtype: torch.dtype) -> Tensor:
            return torch.tensor(list(values), dtype=dtype, device=logits_BV.device)

        how = [r.request.sampling for r in rows]
        seeds = column((_signed(r.request.seed) for r in rows), torch.long)
        positions = column((len(r.tokens) for r in rows), torch.long)
        tokens, logprobs = sample(
            logits_BV,
            column((h.temperature for h in how), torch.float32),
            column((h.top_p for h in how), torch.float32),
            column((h.top_k for h in how), torch.long),
            uniform(seeds, positions),
        )
        return tokens.tolist(), logprobs.tolist()

    def _leave(self, gone: list[bool]) -> None:
        if not any(gone):
            return
        index = [i for i, leaves in enumerate(gone) if not leaves]
        self.slots.keep(torch.tensor(index, dtype=torch.long, device=self.device))
        self.running = [self.running[i] for i in index]


def _left_padded(prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    width = max(len(p) for p in prompts)
    ids = torch.zeros(len(prompts), width, dtype=torch.long)
    mask = torch.zeros(len(prompts), width, dtype=torch.long)
    for i, prompt in enumerate(prompts):
        ids[i, width - len(prompt) :] = torch.tensor(prompt)
        mask[i, width - len(prompt) :] = 1
    return ids, mask


def _signed(seed: int) -> int:
    """Any integer as a signed 64-bit one."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)
