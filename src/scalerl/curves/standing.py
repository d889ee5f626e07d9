"""A verdict that stands: what two arms show now, with what they showed before, and their health.

- *A loser that declines*: where a run that falls is heading is not known, but no higher than where
  it would head if it were healthy. So a healthy winner over a declining loser stays the winner; a
  winner that declines is none.
- *Looking back*: with many looks at two runs, some certainty near the border comes and goes. A side
  is taken above SURE; once taken it is kept above STAND, and the verdict says that it is kept:

      at half the compute  P(a higher) = .98        a has the higher ceiling
      now                  P(a higher) = .96        kept from 50 % of the compute
      now                  P(a higher) = .93        undecided: withdrawn

  The earlier looks are fitted anew from the same points, so the answer does not depend on which
  of them were asked for at the time.
"""

from __future__ import annotations

from dataclasses import replace

from scalerl.curves.arms import Arm
from scalerl.curves.fit import MIN_POINTS, fit
from scalerl.curves.verdict import SAME, Verdict, bar, decide, p_same

#: A side that was taken at an earlier look is kept above this probability. Below 0.95 the 90 %
#: interval of the difference, which is printed beside the verdict, contains 0.
STAND = 0.95
#: Shares of each run's compute at which the earlier looks were.
LOOKS = (0.75, 0.5)


def settle(a: Arm, b: Arm, seed_sd: float) -> Verdict:
    """The verdict on two arms, all considered."""
    found = decide(a, b, seed_sd)
    if found.name == "undecided":
        found = _look_back(a, b, seed_sd, found)
    return _healthy(a, b, found)


def now_and_healthy(a: Arm, b: Arm, seed_sd: float) -> Verdict:
    """The verdict without looking back: for a race, which asks again after every validation."""
    return _healthy(a, b, decide(a, b, seed_sd))


def _healthy(a: Arm, b: Arm, found: Verdict) -> Verdict:
    ill = {arm.name for arm in (a, b) if arm.declines}
    if ill and (found.name != "higher-ceiling" or found.winner in ill):
        return replace(found, name="undecided", winner=None, decided_at=None)
    return found


def _look_back(a: Arm, b: Arm, seed_sd: float, now: Verdict) -> Verdict:
    side = int(now.p_higher[1] > now.p_higher[0])
    winner = (a, b)[side]
    unsure = now.p_higher[side] <= bar(a, STAND)
    if now.both_open or winner.declines or unsure or p_same(now.delta) >= SAME:
        return now
    for share in LOOKS:
        before_a, before_b = _before(a, share), _before(b, share)
        if before_a is None or before_b is None:
            return now
        before = decide(before_a, before_b, seed_sd)
        if before.name == "higher-ceiling" and before.winner == winner.name:
            return replace(now, name="higher-ceiling", winner=winner.name, decided_at=share)
    return now


def _before(arm: Arm, share: float) -> Arm | None:
    """The arm as it was at this share of its runs' compute; None where the points were too few."""
    fits = []
    for f in arm.fits:
        points = f.run.window(f.window[0], share * f.end)
        if len(points) < MIN_POINTS + 1:
            return None
        fits.append(fit(points, law=f.law, r0=f.r0, level=f.level))
    return Arm(arm.name, tuple(fits), arm.habit)
