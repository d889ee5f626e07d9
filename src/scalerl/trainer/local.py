"""The trainer in one process: micro-batches, accumulation, clipping, AdamW, checkpoints."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from scalerl.algorithm.diagnostics import diagnose
from scalerl.algorithm.logits import Precision, chunked_logprobs, final_hidden, head_of
from scalerl.algorithm.objective import Options, Prepared, objective
from scalerl.errors import InputError
from scalerl.trainer.interface import NonFiniteGradient, StepReport, TokenIds
from scalerl.trainer.llama import BUDGET, LONGEST, Layout, LlamaBody, groups_of
from scalerl.trainer.micro import micro_batches, pad


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimiser:
    """AdamW as the paper has it (section 3.12). It does not state betas and gradient clip: these
    are the usual ones."""

    lr: float = 5e-7
    warmup_steps: int = 100
    weight_decay: float = 0.01
    eps: float = 1e-15
    betas: tuple[float, float] = (0.9, 0.95)
    grad_clip: float = 1.0


class LocalTrainer:
    """A Trainer over a model in this process.

    temperature   of the sampler: log-probs are taken under the distribution it drew from
    token_budget  tokens of a micro-batch, padding included, at most
    """

    def __init__(
        self,
        model: nn.Module,
        options: Options,
        optimiser: Optimiser,
        *,
        head_precision: Precision = "fp32",
        temperature: float = 1.0,
        token_budget: int = 8192,
    ) -> None:
        self.model = model
        self.options = options
        self.settings = optimiser
        self.temperature = temperature
        self.token_budget = token_budget
        self.head = head_of(model, head_precision)
        self.body = LlamaBody.of(model)
        self.device = next(model.parameters()).device
        self._version = 0
        self._names = [n for n, p in model.named_parameters() if p.requires_grad]
        self.optimiser = torch.optim.AdamW(
            [p for p in model.parameters() if p.requires_grad],
            lr=optimiser.lr,
            betas=optimiser.betas,
            eps=optimiser.eps,
            weight_decay=optimiser.weight_decay,
        )

    @property
    def version(self) -> int:
        return self._version

    @property
    def lr(self) -> float:
        """Linear warm-up, then constant."""
        share = (self._version + 1) / max(self.settings.warmup_steps, 1)
        return self.settings.lr * min(share, 1.0)

    def logprobs(
        self, prompts: Sequence[TokenIds], completions: Sequence[TokenIds]
    ) -> tuple[Tensor, Tensor]:
        """(log-probs, entropies) of the completions' tokens under the present weights, padded to
        (rows, longest completion) with zeros."""
        found, entropy, place, _ = self._score(prompts, completions)
        shape = (len(prompts), max(len(c) for c in completions))
        return (
            torch.zeros(shape, dtype=found.dtype, device=self.device).index_put(place, found),
            torch.zeros(shape, dtype=entropy.dtype, device=self.device).index_put(place, entropy),
        )

    def _score(
        self, prompts: Sequence[TokenIds], completions: Sequence[TokenIds]
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor], int]:
        """(log-probs, entropies, (rows, columns)) of every completion token, and the tokens that
        went through the model for them."""
        place: tuple[Tensor, Tensor]
        if self.body is not None and _longest(prompts, completions) <= LONGEST:
            layout = Layout.of(prompts, completions, self.body.shape)
            hidden = self.body.hidden(layout).index_select(0, layout.source_M)
            target, place, tokens = layout.target_M, layout.place_M, len(layout.ids_N)
        else:
            ids, mask, rows, columns = (t.to(self.device) for t in pad(prompts, completions))
            hidden = final_hidden(self.model, ids, attention_mask=mask)[rows, columns]
            starts = torch.tensor([len(p) - 1 for p in prompts], device=self.device)
            place, tokens = (rows, columns - starts[rows]), ids.numel()
            target = ids[rows, columns + 1]
        found, entropy = chunked_logprobs(hidden, self.head, target, self.temperature)
        return found, entropy, place, tokens

    def step(self, prompts: Sequence[TokenIds], prepared: Prepared) -> StepReport:
        """One optimiser step. Raises NonFiniteGradient, with nothing changed, rather than learn
        from a gradient that is not finite."""
        start = time.perf_counter()
        completions = [r.token_ids for r in prepared.rollouts]
        parts = self._parts(prompts, completions)
        self.model.train()
        self.optimiser.zero_grad(set_to_none=True)
        shape = prepared.batch.mask_BT.shape
        scored_BT, entropy_BT = torch.zeros(shape), torch.zeros(shape)
        total, tokens = 0.0, 0
        with nullcontext() if self.body is None else self.body.accumulating():
            for rows in parts:
                loss, went = self._backward(
                    rows, prompts, completions, prepared, scored_BT, entropy_BT
                )
                total += loss
                tokens += went
        norm = self._clip(parts, prepared)
        for group in self.optimiser.param_groups:
            group["lr"] = self.lr
        lr = self.lr
        if parts:
            self.optimiser.step()
        found = objective(scored_BT, prepared.batch, self.options).tokens
        report = diagnose(scored_BT, prepared.batch, found, self._version, entropy_BT)
        self._version += 1
        return StepReport(
            version=self._version,
            loss=total,
            grad_norm=norm,
            lr=lr,
            forward_tokens=tokens,
            loss_tokens=int(prepared.batch.mask_BT.sum()),
            micro_batches=len(parts),
            seconds=time.perf_counter() - start,
            diagnostics=report,
        )

    def _parts(
        self, prompts: Sequence[TokenIds], completions: Sequence[TokenIds]
    ) -> list[list[int]]:
        """The rows of each micro-batch."""
        if self.body is not None and _longest(prompts, completions) <= LONGEST:
            return groups_of(prompts, completions, min(self.token_budget, BUDGET))
        lengths = [len(p) + len(c) for p, c in zip(prompts, completions, strict=True)]
        return micro_batches(lengths, self.token_budget)

    def _backward(
        self,
        rows: list[int],
        prompts: Sequence[TokenIds],
        completions: Sequence[TokenIds],
        prepared: Prepared,
        scored_BT: Tensor,
        entropy_BT: Tensor,
    ) -> tuple[float, int]:
        """Add the gradient of some rows; note their log-probs and entropies for the diagnostics.
        Gives their loss, and the tokens that went through the model."""
        written = [completions[i] for i in rows]
        found, entropy, place, tokens = self._score([prompts[i] for i in rows], written)
        width = max(len(c) for c in written)
        logprobs = torch.zeros(len(rows), width, dtype=found.dtype, device=self.device)
        logprobs = logprobs.index_put(place, found)
        index = torch.tensor(rows)
        part = prepared.batch.rows(index).columns(width).to(self.device)
        loss = objective(logprobs, part, self.options).loss
        loss.backward()  # type: ignore[no-untyped-call]
        scored_BT[index, :width] = logprobs.detach().float().cpu()
        entropy_BT[index[place[0].cpu()], place[1].cpu()] = entropy.float().cpu()
        return loss.item(), tokens

    def _clip(self, parts: list[list[int]], prepared: Prepared) -> float:
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.grad_clip)
        value = norm.item()
        if parts and not math.isfinite(value):
            self.optimiser.zero_grad(set_to_none=True)
            rows = len(prepared.rollouts)
            raise NonFiniteGradient(
                f"the gradient of step {self._version + 1} is {value} ({rows} rollouts of "
                f"{len(set(prepared.batch.prompt_B.tolist()))} prompts): nothing was changed"
            )
        return value

    def weights(self) -> Mapping[str, Tensor]:
        return {name: p.detach() for name, p in self.model.named_parameters()}

    def save(self, path: Path) -> None:
        """Model in Hugging Face layout, optimiser state beside it, all as safetensors."""
        path.mkdir(parents=True, exist_ok=True)
        model: Any = self.model
        model.save_pretrained(path)
        tensors: dict[str, Tensor] = {}
        state = self.optimiser.state_dict()["state"]
        for i, name in enumerate(self._names):
            for key, value in state.get(i, {}).items():
                tensors[f"{key}/{name}"] = torch.as_tensor(value).contiguous().clone()
        save_file(tensors, path / "optimiser.safetensors")
        (path / "trainer.json").write_text(json.dumps({"version": self._version}))

    def load(self, path: Path) -> None:
        """Everything `save` wrote: the next step is the one that would have followed."""
        try:
            version = int(json.loads((path / "trainer.json").read_text())["version"])
            tensors = load_file(path / "optimiser.safetensors")
            # By Transformers: on disk weights may be in several files, and experts one by one. Ours
            # is the config, so that nothing of another size is ever made.
            model: Any = self.model
            saved, info = type(model).from_pretrained(
                path, config=model.config, dtype=torch.float32, output_loading_info=True
            )
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"{path} is no whole checkpoint: {error}") from None
        except RuntimeError:  # shapes that do not fit
            raise InputError(f"{path} is a checkpoint of another model") from None
        if info["missing_keys"]:
            raise InputError(f"{path} is a checkpoint of another model")
        with torch.no_grad():
            for ours, theirs in zip(model.parameters(), saved.parameters(), strict=True):
                ours.copy_(theirs)
        state: dict[int, dict[str, Tensor]] = {}
        places = {name: i for i, name in enumerate(self._names)}
        for key, value in tensors.items():
            kind, _, name = key.partition("/")
            state.setdefault(places[name], {})[kind] = value
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": state, "param_groups": groups})
        self._version = version


def _longest(prompts: Sequence[TokenIds], completions: Sequence[TokenIds]) -> int:
    return max((len(p) + len(c) for p, c in zip(prompts, completions, strict=True)), default=0)
