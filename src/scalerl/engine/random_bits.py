"""SplitMix64 (Steele et al. 2014) on tensors: random bits from numbers alone, without a state."""

from __future__ import annotations

from torch import Tensor

# Multipliers, as signed 64-bit numbers.
GOLDEN = -7046029254386353131
MIX_1 = -4658895280553007687
MIX_2 = -7723592293110705685


def shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift to the right: torch's own shift keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mixed(x: Tensor) -> Tensor:
    """64 random bits for each number."""
    x = x + GOLDEN
    x = (x ^ shift_right(x, 30)).mul_(MIX_1)
    x = (x ^ shift_right(x, 27)).mul_(MIX_2)
    return x ^ shift_right(x, 31)


def starts(seed_B: Tensor, position_B: Tensor) -> Tensor:
    """The number of each (seed, position) that is mixed."""
    return seed_B * GOLDEN + (position_B + 1) * MIX_1


def uniform(seed_B: Tensor, position_B: Tensor) -> Tensor:
    """A float64 number in [0, 1) for each (seed, position)."""
    x = mixed(mixed(starts(seed_B, position_B)))
    # The upper 53 bits, all that a float64 in [0, 1) can hold.
    return shift_right(x, 11).double().mul_(2.0**-53)
