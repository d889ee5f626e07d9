"""A validation: mean@k on the held-out prompts, at further temperatures, and on downstream sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scalerl.algorithm.episode import Episode
from scalerl.pipeline.groups import PendingGroup, Writing
from scalerl.pipeline.setup import MAIN, TEMPERATURE, RunSetup
from scalerl.pipeline.transcripts import play_if_played, play_of
from scalerl.runs.lines import AnswerSample, EvalAnswers, Play, SetScore
from scalerl.tasks.task import AnswerScore, Prompt


@dataclass(slots=True, eq=False)
class ValidationPrompt:
    """One held-out prompt, and the episodes that answer it."""

    #: Name of the held-out set that it belongs to.
    set: str
    pending: PendingGroup

    @property
    def prompt(self) -> Prompt:
        return self.pending.prompt

    @property
    def scores(self) -> tuple[AnswerScore, ...]:
        """The scores of its episodes; empty before all are scored."""
        found = self.pending.scores
        return tuple(found[row] for row in sorted(found)) if self.pending.group else ()

    def answered(self) -> list[tuple[Episode, AnswerScore]]:
        """Its episodes with their scores, once all are scored."""
        return list(zip(self.pending.in_order(), self.scores, strict=True))


@dataclass(slots=True, eq=False)
class Validation:
    """One validation. Every validation of a run has the same prompts and seeds, so that two of them
    differ by the weights alone."""

    setup: RunSetup
    #: The prompts, by the key of their group.
    asked: dict[str, ValidationPrompt] = field(default_factory=dict)
    #: Number of prompts without scores.
    missing: int = 0

    @staticmethod
    def from_setup(setup: RunSetup) -> Validation:
        """A validation without answers: k episodes for every prompt of every set."""
        found = Validation(setup)
        for each in setup.sets:
            for i, prompt in enumerate(each.prompts):
                parts = (setup.recipe.seed, "validation", each.name, prompt.id)
                how = Writing("validate", setup.validation_control, each.sampling, parts)
                key = f"validation/{each.name}/{i}"
                tokens = setup.first_tokens(prompt)
                found.asked[key] = ValidationPrompt(
                    each.name, PendingGroup(key, prompt, each.k, how, tokens)
                )
        found.missing = len(found.asked)
        return found

    def unanswered(self) -> Validation:
        """A copy without answers. (Rendering all prompts again would take time.)"""
        asked = {}
        for key, one in self.asked.items():
            p = one.pending
            tokens = None if self.setup.plays(p.prompt) else p.token_ids
            asked[key] = ValidationPrompt(
                one.set, PendingGroup(key, p.prompt, p.size, p.how, tokens)
            )
        return Validation(self.setup, asked, len(asked))

    @property
    def groups(self) -> list[PendingGroup]:
        return [one.pending for one in self.asked.values()]

    @property
    def progress(self) -> tuple[int, int, int]:
        """Numbers of answers written, answers scored, and all answers."""
        found = self.groups
        return (
            sum(len(p.episodes) for p in found),
            sum(len(p.scores) for p in found if p.group is not None),
            sum(p.size for p in found),
        )

    def unscored(self) -> list[PendingGroup]:
        """The groups of single-turn prompts with missing scores, to be checked again. They are not
        written again: the same weights and seeds would write the same."""
        again = [
            p
            for p in self.groups
            if not self.setup.plays(p.prompt) and any(v.correct is None for v in p.scores.values())
        ]
        for p in again:
            p.group, p.scores = None, {}
        self.missing = len(again)
        return again

    @property
    def main(self) -> SetScore:
        """The score of the held-out prompts of the task itself."""
        return self._scores()[MAIN]

    @property
    def nothing_scored(self) -> str | None:
        """The error if not a single answer could be scored, else None."""
        score = self.main
        if score.scored:
            return None
        scorer = "verifier" if self.setup.episodes is None else "environment"
        return (
            f"not one of {score.n_prompts * score.k} answers of the first validation could be "
            f"scored: {score.failed}; repair the {scorer} (task.name, task.options), then --resume"
        )

    def _scores(self) -> dict[str, SetScore]:
        sets: dict[str, list[ValidationPrompt]] = {}
        for asked in self.asked.values():
            sets.setdefault(asked.set, []).append(asked)
        return {s.name: set_score([a.scores for a in sets[s.name]], s.k) for s in self.setup.sets}

    def score(self) -> dict[str, Any]:
        """The fields of an `EvalLine` that follow from the answers."""
        scores = self._scores()
        main = scores.pop(MAIN)
        heated = {text: scores.pop(TEMPERATURE + text) for text in self.setup.temperatures}
        asked = [a for a in self.asked.values() if a.set == MAIN]
        episodes = [e for a in asked for e in a.pending.in_order()]
        return {
            "pass_rate": main.pass_rate,
            "stderr": main.stderr,
            "n_prompts": main.n_prompts,
            "k": main.k,
            "scored": main.scored,
            "unscored": len(episodes) - (main.scored or 0),
            "failed": main.failed,
            "truncated": float(np.mean([e.truncated for e in episodes])),
            "tasks": by_task((a.prompt.task, a.scores) for a in asked),
            "downstream": scores or None,
            "temperatures": heated or None,
            "play": Play.from_episodes((play_of(e), e.finish) for e in episodes),
        }

    def answers(self, step: int) -> EvalAnswers:
        """How often each prompt was answered correctly, and some answers to read."""
        return EvalAnswers.from_answers(
            step,
            (
                AnswerSample(
                    prompt=asked.prompt.id,
                    question=question_text(asked.prompt),
                    answer=self.setup.episode_text(episode),
                    correct=score.correct,
                    why=score.why,
                    finish=episode.finish,
                    set=asked.set,
                    play=play_if_played(episode),
                )
                for asked in self.asked.values()
                for episode, score in asked.answered()
            ),
        )


def by_task(asked: Iterable[tuple[str, Sequence[AnswerScore]]]) -> dict[str, float]:
    """Pass rate of each task of a mixture, from (task, scores) of each prompt."""
    tasks: dict[str, list[float]] = {}
    for task, scores in asked:
        right = [v.correct for v in scores if v.correct is not None]
        if right:
            tasks.setdefault(task, []).append(float(np.mean(right)))
    return {name: float(np.mean(shares)) for name, shares in tasks.items()}


def set_score(scores: Sequence[Sequence[AnswerScore]], k: int) -> SetScore:
    """Pass rate of a set with its standard error, from the scores of each prompt's answers.

    Unscored is not wrong: it is the mean, over prompts with scored answers, of the share that is
    correct among these. If fewer than half of the answers could be scored, or only one prompt of
    several has a score, there is no pass rate but a reason (`failed`).

    >>> yes, no, unknown = (AnswerScore(c, 0.0, "why") for c in (True, False, None))
    >>> set_score([[yes, unknown], [no, yes]], k=2).pass_rate
    0.75
    >>> set_score([[yes, unknown], [unknown, unknown]], k=2).failed
    'why'
    """
    known = [[bool(v.correct) for v in each if v.correct is not None] for each in scores]
    shares = [float(np.mean(each)) for each in known if each]
    scored, asked = sum(map(len, known)), sum(map(len, scores))
    if 2 * scored < asked or len(shares) < min(2, len(scores)):
        return SetScore(None, None, len(scores), k, scored, reason(scores))
    # Over prompts: the answers to one prompt are not independent of each other.
    spread = float(np.std(shares, ddof=1) / np.sqrt(len(shares))) if len(shares) > 1 else None
    return SetScore(float(np.mean(shares)), spread, len(scores), k, scored)


def reason(scores: Sequence[Sequence[AnswerScore]]) -> str:
    """The most common reason of answers without a score."""
    return Counter(v.why for each in scores for v in each if v.correct is None).most_common(1)[0][0]


def question_text(prompt: Prompt) -> str:
    """The question as plain text; of a chat, a line per message."""
    if isinstance(prompt.question, str):
        return prompt.question
    return "\n".join(f"{message['role']}: {message['content']}" for message in prompt.question)
