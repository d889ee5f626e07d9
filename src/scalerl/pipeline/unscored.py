"""Why answers have no score: each reason said when it is first met, and then as it grows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from scalerl.tasks.task import AnswerScore

#: Reasons that are told apart, in a run and in the line of a step; a verifier may put anything into
#: its messages.
KNOWN, LISTED = 20, 5
FURTHER = "further reasons"
#: A reason is said again when it has so many times as many answers.
AGAIN = 10


@dataclass(slots=True)
class Unscored:
    """Counts answers without a score, by reason."""

    totals: Counter[str] = field(default_factory=Counter)
    _said: dict[str, int] = field(default_factory=dict)

    def add(self, verdicts: Sequence[AnswerScore]) -> list[tuple[str, int]]:
        """Lines worth a warning now, each with the number of answers so far.

        >>> unscored = Unscored()
        >>> unscored.add([AnswerScore.unscored("no gold answer")] * 4)
        [('4 answers could not be scored: no gold answer', 4)]
        >>> unscored.add([AnswerScore.unscored("no gold answer")] * 4)
        []
        """
        # What was given up is told at once, by whoever gave it up (pipeline/checks.py).
        for verdict in verdicts:
            if not verdict.scored and not verdict.gave_up:
                why = verdict.why
                known = why in self.totals or len(self.totals) < KNOWN
                self.totals[why if known else FURTHER] += 1
        lines = []
        for why, total in self.totals.items():
            if total >= AGAIN * self._said.get(why, 0):
                self._said[why] = total
                many = "answer" if total == 1 else "answers"
                lines.append((f"{total} {many} could not be scored: {why}", total))
        return lines


def commonest(whys: Counter[str]) -> dict[str, int]:
    """The commonest reasons, and how many answers have others.

    >>> commonest(Counter({"a": 9, "b": 8, "c": 7, "d": 6, "e": 5, "f": 4, "g": 3}))
    {'a': 9, 'b': 8, 'c': 7, 'd': 6, 'e': 5, 'further reasons': 7}
    """
    found = dict(whys.most_common(LISTED))
    rest = whys.total() - sum(found.values())
    return found | ({FURTHER: rest} if rest else {})
