"""The local engine: continuous batching over any Hugging Face causal LM, on a CPU or one GPU.

Requests join and leave between decode steps; weights change between decode steps; the key-value
cache is kept. Each step costs one forward pass of one token per running request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from scalerl.engine.decoder import Decoder, ModelDecoder
from scalerl.engine.interface import Health, Request, Written
from scalerl.engine.rows import Rows, Running, unwritten
from scalerl.engine.sampling import draw, uniform
from scalerl.errors import InputError
from scalerl.models.llama.decode import LlamaDecoder
from scalerl.models.rows import Compaction


class LocalEngine:
    """An Engine over a model in this process.

    slots    requests that run at once
    columns  longest prompt plus answer, in tokens
    """

    def __init__(
        self, model: nn.Module, *, slots: int = 64, columns: int = 2048, version: int = 0
    ) -> None:
        self.model: Any = model.eval()
        self.device = next(model.parameters()).device
        self.columns = columns
        self.slots = slots
        fast = LlamaDecoder.of(model, slots, columns)
        self.decoder: Decoder = ModelDecoder(model, slots, columns) if fast is None else fast
        self.rows = Rows(slots, columns, self.device)
        self.version = version
        self.waiting: deque[Request] = deque()
        self.written_tokens = 0

    @property
    def running(self) -> list[Running]:
        """The requests that are being written."""
        return self.rows.running

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
        if self.rows:
            finished += self._advance(self.decoder.decode(self.rows.last_tokens()))
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
        rows = [i for i, r in enumerate(self.running) if r.request.id in gone]
        out = [self.rows.written(i, None) for i in rows]
        self._leave(rows)
        self.waiting = deque(r for r in self.waiting if r.id not in gone)
        return out

    def health(self) -> Health:
        return Health(self.version, len(self.waiting), len(self.running), self.written_tokens)

    def _admit(self) -> list[Written]:
        """Read the prompts of waiting requests, as many as there are free rows, and draw their
        first tokens."""
        free = self.slots - len(self.running)
        new: list[Running] = []
        finished: list[Written] = []
        while self.waiting and len(new) < free:
            request = self.waiting.popleft()
            running = Running(request, request.control.start(request.seed))
            done = running.ask()
            if done is None:
                new.append(running)
            else:
                finished.append(unwritten(running, done))
        if new:
            first = len(self.running)
            logits_BV = self.decoder.join([r.request.prompt_token_ids for r in new])
            self.rows.join(new)
            finished += self._advance(logits_BV, first)
        return finished

    def _advance(self, logits_BV: Tensor, first: int = 0) -> list[Written]:
        """One token for each of the rows from `first` on: forced, or drawn."""
        how, seeds_B, positions_B = self.rows.chance(first)
        token_B, logprob_B = draw(logits_BV, how, uniform(seeds_B, positions_B))
        done = self.rows.write(first, token_B.cpu().numpy(), logprob_B.cpu().numpy(), self.version)
        self.written_tokens += len(token_B)
        out = [self.rows.written(i, finish) for i, finish in done]
        self._leave([i for i, _ in done])
        return out

    def _leave(self, rows: Sequence[int]) -> None:
        if rows:
            gone_B = np.zeros(len(self.running), dtype=bool)
            gone_B[list(rows)] = True
            moves = Compaction.of(gone_B)
            self.rows.leave(moves)
            self.decoder.leave(moves)
