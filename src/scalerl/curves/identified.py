"""Whether the points of a run identify its ceiling, and why not."""

from __future__ import annotations

from scalerl.curves.prediction import SigmoidPredictive, sample_quantiles, tails

#: The ceiling counts as identified when its 90 % interval is no wider than this.
IDENTIFIED_WIDTH = 0.10
#: A ceiling whose interval reaches this score is bounded by the end of the scale, not by the data.
BOUND = 0.995
#: Points between a tenth and nine tenths of the gain that a ceiling needs: a plateau alone does not
#: show how the run got there, nor that it stays.
MIN_ON_RISE = 2
#: No ceiling is quoted from this probability on that no gain is under way.
NO_GAIN = 0.5


def why_not_identified(predictive: SigmoidPredictive, alarm: bool) -> str:
    """Why the ceiling may not be quoted, as a sentence; empty where it may."""
    posterior = predictive.posterior
    low, high = sample_quantiles(predictive.parameter("A"), tails(0.9))
    if alarm:
        return "ceiling not identified: the run is declining"
    if posterior.no_gain >= NO_GAIN:
        return (
            f"no gain seen (probability {posterior.no_gain:.2f} that none is under way); a rise "
            "cannot be excluded: no ceiling is quoted"
        )
    if high - low > IDENTIFIED_WIDTH:
        return (
            f"ceiling not identified: 90 % interval [{low:.2f}, {high:.2f}] is wider than "
            f"{IDENTIFIED_WIDTH:g}; train longer before quoting it"
        )
    if high >= BOUND:
        return (
            f"ceiling not identified: its 90 % interval [{low:.2f}, {high:.2f}] ends at the "
            "largest score there is; train longer before quoting it"
        )
    if posterior.on_rise < MIN_ON_RISE:
        return (
            "ceiling not identified: only the plateau was seen, not the rise; evaluate more often "
            "at the beginning"
        )
    return ""
