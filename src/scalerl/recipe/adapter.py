"""The section of a recipe about LoRA adapters."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from scalerl.recipe.fields import Section, field

#: alpha / rank where `adapter.alpha` is unset.
DEFAULT_SCALE = 2.0


class AdapterSection(Section):
    """LoRA: W = base + alpha / rank · B A, of which only A and B are trained. Generators prove that
    they have the adapter that was published (placement.proof_every)."""

    rank: int = field(0, "rank of A and B; 0: no adapter, all weights are trained", "ours", ge=0)
    alpha: float | None = field(
        None, "alpha / rank is the scale of B A; unset: 2 x rank", "community: PEFT's guides", gt=0
    )
    targets: tuple[str, ...] = field(
        (),
        "last parts of the names of the layers with an adapter; empty: all linear layers",
        "community: Thinking Machines, LoRA Without Regret",
        strict=False,
    )
    experts: bool = field(
        False, "whether the experts of a mixture have adapters, each of this rank", "ours"
    )
    head: bool = field(
        False, "whether the head has one; not for tied weights", "community: PEFT's all-linear"
    )
    mode: Literal["merged", "unmerged"] = field(
        "merged",
        "passes compute with base + B A, always merged from the base (merged), or add B (A x) to "
        "each layer's output (unmerged): less memory for gradients, slower decoding",
        "ours",
    )
    lr_factor: float = field(
        10.0,
        "learning rate of A and B, as a multiple of optimiser.lr",
        "community: tinker-cookbook uses 10 at any size, others print 20 to 100",
        gt=0,
    )

    @model_validator(mode="after")
    def _used(self) -> AdapterSection:
        for key, info in type(self).model_fields.items():
            if self.rank == 0 and getattr(self, key) != info.default:
                raise ValueError(
                    f"adapter.{key} has no effect without adapters: set adapter.rank, or leave it "
                    "out"
                )
        return self

    @property
    def alpha_used(self) -> float:
        """alpha, or its default for this rank."""
        return DEFAULT_SCALE * self.rank if self.alpha is None else self.alpha

    @property
    def lr_factor_source(self) -> str:
        """Where the number comes from by which optimiser.lr is multiplied.

        >>> AdapterSection(rank=8, lr_factor=20.0).lr_factor_source
        'set by this recipe; the default is 10'
        """
        info = type(self).model_fields["lr_factor"]
        if self.lr_factor != info.default:
            return f"set by this recipe; the default is {info.default:g}"
        extra = info.json_schema_extra
        assert isinstance(extra, dict), "`field` writes it"
        return str(extra["source"])
