"""The proof that an engine generates with the adapter that the trainer published.

With each adapter the trainer publishes a checksum and the log-probs of a few tokens (the probe)
under its own forward pass. A generator

- compares checksum, names and shapes of every adapter that it receives;
- at its first adapter, then at every `proof_every`-th, and after its trainer was replaced, loads a
  rehearsal first: an adapter that both sides know and whose every tensor shows in the log-probs.
  The engine's log-probs of the probe must be the trainer's under the rehearsal. Then it loads the
  published adapter: they must be the trainer's under that one, and no longer those before.

The rehearsal is needed because adapters differ little from one step to the next, and the first not
at all from the base: B is 0. A fault is named by comparison with what an engine with that fault
would say (adapter_faults.py).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scalerl.engine.adapter_faults import name_fault
from scalerl.engine.interface import EngineSpec, ScoringEngine
from scalerl.engine.probe import MAX_LOGPROB_GAP
from scalerl.errors import InputError, PipelineError
from scalerl.models.adapter import (
    PROOF,
    AdapterProbe,
    check_names,
    rehearsal,
    shapes_of,
    targets_of,
)
from scalerl.models.load import meta_model_fast


def with_proof(
    tensors: Mapping[str, Tensor], version: int, probe: AdapterProbe
) -> dict[str, Tensor]:
    """What is published: an adapter, and what a generator needs to prove that it has it."""
    sent = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    found = checksum(sent)
    header = (version, found >> 16, found & 0xFFFF, probe.share)
    numbers = (*header, *probe.current, *probe.base, *probe.rehearsal)
    dtype = next(iter(sent.values())).dtype
    return {**sent, PROOF: torch.tensor(numbers, dtype=dtype)}


def checksum(tensors: Mapping[str, Tensor]) -> int:
    """CRC-32 of all tensors, in the order of their names."""
    found = 0
    for name in sorted(tensors):
        found = zlib.crc32(tensors[name].contiguous().numpy().tobytes(), found)
    return found


@dataclass(frozen=True, slots=True)
class Proof:
    """What the trainer says about an adapter."""

    version: int
    checksum: int
    probe: AdapterProbe

    @staticmethod
    def from_tensor(numbers: Tensor) -> Proof:
        version, high, low, share, *logprobs = numbers.tolist()
        n = len(logprobs) // 3
        current, base, last = (tuple(logprobs[i * n : (i + 1) * n]) for i in range(3))
        probe = AdapterProbe(current, base, last, share)
        return Proof(int(version), int(high) << 16 | int(low), probe)


class ProvenAdapter:
    """What adapters are loaded into, in place of an engine."""

    def __init__(self, engine: ScoringEngine, spec: EngineSpec) -> None:
        assert spec.adapter is not None
        self.engine, self.spec, self.adapter = engine, spec, spec.adapter
        shape = meta_model_fast(spec.model, spec.dtype, trust_remote_code=spec.trust_remote_code)
        self.targets = targets_of(shape, self.adapter)
        self.shapes = shapes_of(self.targets, self.adapter.rank)
        self.allowed = MAX_LOGPROB_GAP[spec.dtype]
        #: Adapters loaded since the last proof; None: the next one is proven in any case.
        self._since: int | None = None
        #: Proofs that were made, in words.
        self.proofs: list[str] = []
        #: Version and log-probs of the adapter that was loaded last.
        self._last: tuple[int, tuple[float, ...]] | None = None

    def doubt(self) -> None:
        """Prove the next adapter, whatever the number of those since the last proof."""
        self._since = None

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        # A copy, so that what is checked is what is loaded.
        given = {name: tensor.cpu().clone() for name, tensor in weights.items()}
        proof = Proof.from_tensor(given.pop(PROOF))
        self._check_received(given, version, proof)
        due = self._since is None or self._since + 1 >= self.adapter.proof_every
        if due:
            self._rehearse(proof.probe)
        self.engine.load(given, version)
        if due:
            self._prove(given, version, proof.probe)
        self._since = 0 if due or self._since is None else self._since + 1
        self._last = (version, proof.probe.current)

    def _check_received(self, given: Mapping[str, Tensor], version: int, proof: Proof) -> None:
        try:
            check_names(given, self.shapes)
        except InputError as error:
            raise PipelineError(f"the adapter of version {version} was refused: {error}") from None
        if proof.version != version:
            raise PipelineError(
                f"the adapter of version {version} was refused: what arrived is the adapter of "
                f"version {proof.version}"
            )
        if checksum(given) != proof.checksum:
            raise PipelineError(
                f"the adapter of version {version} was refused: its checksum is not that of what "
                "the trainer published: it was damaged on the way, or is an older one"
            )

    def _rehearse(self, probe: AdapterProbe) -> None:
        """Load an adapter whose every tensor shows, and compare log-probs with the trainer's."""
        tensors = rehearsal(self.targets, self.adapter, probe.share)
        self.engine.load(tensors, self.engine.health().version)
        scored = self.engine.score(self.adapter.probe)
        if self._gap(scored, probe.rehearsal) > self.allowed:
            named = {"it generates with the base model": probe.base}
            if self._last is not None:
                named = {f"it kept the adapter of version {self._last[0]}": self._last[1]} | named
            self._refuse("of the rehearsal", tensors, scored, probe.rehearsal, named)

    def _prove(self, given: Mapping[str, Tensor], version: int, probe: AdapterProbe) -> None:
        scored = self.engine.score(self.adapter.probe)
        before = {"it kept the adapter that it had before": probe.rehearsal}
        if self._gap(scored, probe.current) > self.allowed:
            named = before | {"it generates with the base model": probe.base}
            self._refuse(f"of version {version}", given, scored, probe.current, named)
        if self._gap(scored, probe.rehearsal) <= self.allowed:
            self._refuse(f"of version {version}", given, scored, probe.current, before)
        self.proofs.append(
            f"has proved that it generates with the adapter of version {version}: log-probs of a "
            f"probe differ by {self._gap(scored, probe.current):.1g} from the trainer's, and by "
            f"{self._gap(scored, probe.rehearsal):.1g} from those of the adapter before"
        )

    def _gap(self, a: Sequence[float], b: Sequence[float]) -> float:
        gaps = (torch.tensor(a) - torch.tensor(b)).abs()
        # Rounding may send a token to other experts of a mixture, in a low precision: the median.
        coarse = self.spec.dtype != "float32" and any(len(t.shape) == 3 for t in self.targets)
        found = float(gaps.median() if coarse else gaps.mean())
        return found if found == found else float("inf")

    def _refuse(
        self,
        which: str,
        tensors: Mapping[str, Tensor],
        scored: Sequence[float],
        wanted: Sequence[float],
        named: Mapping[str, Sequence[float]],
    ) -> None:
        gap = self._gap(scored, wanted)
        cause = next((n for n, v in named.items() if self._gap(scored, v) <= self.allowed), None)
        cause = cause or name_fault(self.spec, self.targets, tensors, scored, self.allowed)
        raise PipelineError(
            f"the generator does not have the trainer's adapter {which}: {cause} (log-probs of a "
            f"probe are {gap:.2g} apart, at most {self.allowed:g} is allowed)"
        )


def proven(engine: Any, spec: EngineSpec) -> Any:
    """What weights are loaded into: the engine; with an adapter, its proof in front of it."""
    if spec.adapter is None:
        return engine
    if not isinstance(engine, ScoringEngine):
        raise InputError(
            f"[adapter] needs an engine that can prove which adapter it has, and a "
            f"{type(engine).__name__} has no method `score`: set placement.engine=local or vllm"
        )
    return ProvenAdapter(engine, spec)
