"""The section of a recipe that adds a known amount of what makes RL hard at scale."""

from __future__ import annotations

from scalerl.recipe.fields import Section, field


class ForcesSection(Section):
    """Forces: errors of large runs, added in a known dose to measure what they do. Without any,
    sampler and trainer of the default run agree to rounding. Validation is without noise."""

    sampler_noise: float = field(
        0.0,
        "standard deviation of Gaussian noise on the generators' logits while they write training "
        "rollouts; recorded log-probs are those of the noisy distribution",
        "ours",
        unit="nats",
        ge=0,
    )
    generator_split: int = field(
        1,
        "parts of the hidden dimension over which the generators' head is summed, each partial sum "
        "rounded to the head's precision: another order of accumulation",
        "ours",
        unit="parts",
        ge=1,
    )

    @property
    def active(self) -> bool:
        """Whether generators differ from the trainer on purpose.

        >>> ForcesSection(sampler_noise=0.1).active, ForcesSection().active
        (True, False)
        """
        return self != ForcesSection()
