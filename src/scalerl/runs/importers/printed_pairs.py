"""Lines that a training script printed in a form of its own: a step, and names with numbers.

    10:00:00 SUCCESS Step 20 | Time: 34.50s | Reward: 0.4123               prime-rl
    INFO - step=20 loss=0.01 reward=0.41 eval_acc=0.38                     many scripts
    20/300 [10:00<1:00, 30s/it, policy_loss=0.01, reward=0.41]             OpenRLHF's progress bar
    ===== Step 20/300 =====                                                NeMo-RL: the step, then
      Validation Results:                                                  a list of metrics
        • Accuracy: 0.4123

A line counts if one of its names is that of a score or of a metric of training. A step on a line of
its own holds for the lines after it. Words such as `[eval]`, `Validation Results:` or `Evaluated
aime24` say that the numbers after them are of an evaluation.
"""

from __future__ import annotations

import re

from scalerl.runs import metrics

#: Characters of a line that are searched: longer ones are prompts and answers.
MAX_LINE = 2_000
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_COUNT = re.compile(
    r"(?:^|[\s(\[|,>=\-])((?:global|train|training)?[_ ]?step|iteration|iter|epoch|rollout|eval"
    r"|update)[ :=#]{1,3}(\d+)(?:\s*/\s*\d+)?(?![\w.%])",
    re.IGNORECASE,
)
# What tqdm draws: `12/500 [01:02<40:11, 4.9s/it, reward=0.4]`.
_BAR = re.compile(r"(\d+)/\d+ \[\d+:\d+[^\]]*\]")
#: `val_acc=0.38`, `Avg Reward: 0.4`, `Time: 34.5s`; not the `10:00` of a time.
_PAIR = re.compile(
    rf"([A-Za-z][\w@/.\-]*(?: [A-Z][\w@.]*){{0,2}})\s*[=:]\s*({_NUMBER})(?:s|ms|%)?(?![\w:.\-/%])"
)
_HELD_OUT = r"(?:eval|evaluation|validation|val|test)"
#: An evaluation, right before the step or the first name.
_EVALUATION = re.compile(rf"(?:^|[\s\[(|]){_HELD_OUT}\]?\)?[\s:|\-]*$", re.IGNORECASE)
_EVALUATED = re.compile(r"\bevaluated (\S+) in\b", re.IGNORECASE)
#: A heading above a list of metrics.
_SECTION = re.compile(rf"\W*({_HELD_OUT}|train|training)\w* results\b", re.IGNORECASE)


class PairReader:
    """Reads lines in their order, because a step or a heading holds for the lines below it."""

    def __init__(self) -> None:
        self._at: dict[str, object] = {}
        self._evaluates = False

    def row(self, line: str) -> dict[str, object] | None:
        """The numbers of a line by their names, with its step; None where it has no metrics."""
        line = line[:MAX_LINE]
        if heading := _SECTION.match(line):
            self._evaluates = not heading[1].lower().startswith("train")
            return None
        counts = list(_COUNT.finditer(line))
        bar = _BAR.search(line)
        found = [] if ":" not in line and "=" not in line else list(_PAIR.finditer(line))
        pairs = {m[1]: float(m[2]) for m in found if _COUNT.fullmatch(m[0].strip()) is None}
        if counts:
            # A line with a step of its own is under no heading.
            self._evaluates = False
            steps = [int(m[2]) for m in counts if m[1].lower() != "epoch"]
            self._at = {"step": steps[0]} if steps else {"epoch": int(counts[0][2])}
        at: dict[str, object] = self._at
        if bar is not None and not counts:
            at = {"step": int(bar[1])}
        if not at or not any(map(_is_metric, pairs)):
            return None
        first = min(m.start() for m in [*counts, *found])
        prefix = _prefix(line, first, self._evaluates and not counts)
        named = {prefix + name.replace(" ", "_").lower(): value for name, value in pairs.items()}
        return at | named


def step_before(text: str) -> int | None:
    """The step that a line names before its dict: `rollout 20: {...}`."""
    counts = [m for m in _COUNT.finditer(text[-MAX_LINE:]) if m[1].lower() != "epoch"]
    return int(counts[-1][2]) if counts else None


def _is_metric(name: str) -> bool:
    plain = name.replace(" ", "_")
    return bool(metrics.score_columns([plain])[0]) or metrics.is_of_a_step(plain)


def _prefix(line: str, first: int, evaluates: bool) -> str:
    if named := _EVALUATED.search(line):
        return f"eval/{named[1]}/"
    return "eval/" if evaluates or _EVALUATION.search(line[:first].rstrip()) else ""
