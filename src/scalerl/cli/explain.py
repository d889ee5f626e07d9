"""`--explain`: what the verdicts and terms in a result mean, printed below it."""

from __future__ import annotations

import argparse
import re

from scalerl.curves.verdict import VERDICT_MEANINGS, VERDICT_WORDS, VerdictName

#: Verdict → pattern of its words, also from the side of the run that lost.
_VERDICT_PATTERNS: dict[VerdictName, str] = {
    "higher-ceiling": r"\b(higher|lower) ceiling",
    "faster": r"\bsame ceiling[,;]",
    "same": r"\bno difference\b",
    "undecided": r"\bundecided\b|\bdo not decide\b",
}
#: Term → pattern by which it is found in a result, and its meaning in one or two sentences. Also
#: in docs/glossary.md.
_TERMS = {
    "ceiling (A)": (
        r"\bceilings?\b|\bA \[|ΔA",
        "The pass rate at which the fitted curve levels off with unlimited compute.",
    ),
    "identified": (
        r"\bidentif(y|ied)\b|\bopen\b",
        "A ceiling is identified when its 90 % interval is at most 0.1 wide. Until then the points "
        "allow too many ceilings to quote one: train longer.",
    ),
    "B": (
        r"(?m)^[^\n]*\bB +C_mid\b|\bof B\b|\blarger B\b",
        "The steepness of the curve: the larger, the sooner after C_mid it reaches its ceiling.",
    ),
    "C_mid": (r"\bC_mid\b", "The compute at which half of the gain from R_0 to A is reached."),
    "R_0": (r"\bR_0\b", "The pass rate at zero compute, where the curve starts."),
    "interval [low, high]": (
        r"\[[-+0-9.]+[a-zA-Z]?, ",
        "The range that holds the true value with the stated probability (90 % unless --level says "
        "otherwise).",
    ),
    "90 % true, 90 % observed": (
        r"90 % true",
        "The interval of the true pass rate, and the wider one of a single evaluation, which also "
        "has the luck of its samples.",
    ),
    "next doubling": (
        r"\bnext doubling\b",
        "The gain in pass rate that is expected from twice the compute spent so far.",
    ),
    "rmse": (r"\brmse\b", "The root mean square of the distances between points and curve."),
    "overtakes": (
        r"\bovertakes\b|\bcrosses\b",
        "The curves cross: one leads early, the other in the end.",
    ),
    "paper's rule": (
        r"\bpaper's rule\b",
        "The comparison of the ScaleRL paper: the larger fitted A wins; if both are within 0.02, "
        "the larger B does. It has no verdict for too little data.",
    ),
    "half": (
        r"(?m)^variant .*\bhalf\b",
        "Runs in which the forecast at half of the compute held, of those that could be checked.",
    ),
    "on the same prompts": (
        r"\bon the same prompts\b",
        "The difference in pass rate from the reference, prompt by prompt, at the compute that "
        "both have reached. What makes a prompt hard cancels.",
    ),
    "moves": (
        r"(?m)^change .*\bmoves\b",
        "What a change does: it moves the ceiling, only the speed, neither, or it is undecided.",
    ),
    "unstable": (
        r"\bunstable\b",
        "A rule of stability was broken (gradient, ratio, truncation, collapse, …). The run is not "
        "fitted.",
    ),
}


class ExplainedOutput:
    """Prints a result, and at its end, if `--explain` was given, what its terms mean."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._wanted: bool = args.explain
        self._text = ""

    def say(self, text: str) -> None:
        """Print a part of the result."""
        from scalerl.report import terminal

        terminal.say(text)
        # Terms are looked for in what was printed, so that no command has to list its own.
        self._text += f"{text}\n"

    def finish(self, more: str = "") -> None:
        """Print what the terms in the result, and in `more`, mean."""
        if self._wanted:
            from scalerl.report import terminal

            terminal.say(explanation(self._text + more))


def explanation(text: str) -> str:
    """The verdicts and terms that a text contains, with what each means.

    >>> print(explanation("no difference between a and b"))
    <BLANKLINE>
    What the words mean
      no difference: Both level off at about the same pass rate (within 0.02) and
        need about the same compute to get there (within 20 %). Choose by simplicity
        or cost: more compute is unlikely to separate them.
    """
    from scalerl.report.terminal import wrap

    # A line break inside a term is a space: results are wrapped.
    flat = re.sub(r"(?<=\S)\n +(?=\S)", " ", text)
    # The paper's rule uses the same words without their probabilities.
    ours = re.sub(r"paper's rule:[^\n]*", "", flat)
    found = {
        VERDICT_WORDS[name]: VERDICT_MEANINGS[name]
        for name, pattern in _VERDICT_PATTERNS.items()
        if re.search(pattern, ours)
    }
    for term, (pattern, meaning) in _TERMS.items():
        if re.search(pattern, flat):
            found[term] = meaning
    lines = [wrap(f"{term}: {meaning}", "    ", "  ") for term, meaning in found.items()]
    return "\n".join(["", "What the words mean", *lines])
