"""The members of a study as the race sees them, and the limits of the next chunk of each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from scalerl.recipe import Recipe
from scalerl.study.members import Limits, Member, MemberProgress, budget_weight, limits_of
from scalerl.study.race import Racer
from scalerl.study.table import MemberFinding

#: Validations that every member of a race gets first, so that the law can be fitted.
FIRST_VALIDATIONS = 6
#: Number of chunks of a budget, if it has that many validations. Few, because every further look at
#: the data adds a chance of a wrong verdict, and every start of a run costs seconds.
CHUNKS = 4


def portions(recipe: Recipe, screen: float) -> tuple[float, float]:
    """Shares of the budget that a member gets first, and at a time after that.

    >>> tiny = Recipe.load("scalerl", "tiny")  # 300 steps, a validation every 10
    >>> [round(300 * share) for share in portions(tiny, screen=0.25)]
    [60, 80]
    """
    steps, every = recipe.budget.steps, recipe.validation.every
    if steps is None:
        return screen, 1.0 / CHUNKS
    chunk = every * max(round(steps / every / CHUNKS), 1)
    return min(FIRST_VALIDATIONS * every / steps, 1.0), min(chunk / steps, 1.0)


def next_limits(member: Member, share: float, screen: float) -> Limits:
    """The limits of the next chunk of a member that has spent this share. Chunks end at fixed
    shares, wherever a run was stopped. Less than half a chunk at the end goes with the last."""
    first, chunk = portions(member.recipe, screen)
    if share < first - 1e-9:
        return limits_of(member.recipe, first)
    # 1e-6: a chunk that ended at its limit counts as whole in floating point.
    behind = int((share - first) / chunk + 1e-6)
    goal = first + (behind + 1) * chunk
    return limits_of(member.recipe, goal if 1.0 - goal > chunk / 2.0 - 1e-9 else 1.0)


def racers(
    members: Sequence[Member],
    found: Sequence[MemberFinding],
    now: Mapping[str, MemberProgress],
    screen: float,
    closed: Collection[str],
) -> list[Racer]:
    """The members as `race` takes them; those in `closed` are running or have failed."""
    made = []
    for member, finding in zip(members, found, strict=True):
        first, chunk = portions(member.recipe, screen)
        made.append(
            Racer(
                member.name, member.variant, finding.fit, now[member.name].share(member.recipe),
                first, chunk, budget_weight(member.recipe),
                unstable=finding.stability.state == "unstable", closed=member.name in closed,
            )
        )  # fmt: skip
    return made
