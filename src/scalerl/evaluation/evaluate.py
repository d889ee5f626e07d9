"""`evaluate`: score models, checkpoints and whole runs on a task.

    from scalerl import evaluate

    evaluate("runs/first", out="evals/first")                          # its own validation
    evaluate("tiny", task="running-sums", prompts=50, k=16, out="evals/tiny")

A run or a checkpoint is evaluated with the recipe of its run: the same prompts, seeds, sampling and
length control as in its validations, so that the numbers are the same. Answers that are already in
the output directory are not generated again.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from scalerl.errors import InputError
from scalerl.evaluation import scores
from scalerl.evaluation.options import EvaluationOptions
from scalerl.evaluation.record import EvaluationRecord
from scalerl.evaluation.runner import EvaluationWorkers
from scalerl.evaluation.scores import Evaluation
from scalerl.evaluation.subjects import subjects
from scalerl.pipeline.setup import RunSetup
from scalerl.pipeline.transcripts import play_if_played
from scalerl.pipeline.validation import (
    Validation,
    ValidationPrompt,
    by_task,
    question_text,
    set_score,
)
from scalerl.placement.child import UNGUARDED
from scalerl.runs.lines import AnswerLine, EpisodePlay, EvalLine, Play
from scalerl.runs.lock import RunLock
from scalerl.tasks.task import AnswerScore, Prompt, Task

#: Play of an answer without an environment, which has no such field on disk.
ONE_TURN = EpisodePlay(1, 0, 0, 0, 0.0)


def evaluate(
    *models: str | Path,
    out: str | Path,
    task: str | None = None,
    dataset: str | Path | None = None,
    prompts: int | None = None,
    k: int | None = None,
    temperature: float | None = None,
    recipe: Sequence[str | Path] = (),
    changes: Sequence[str] = (),
    level: float = scores.LEVEL,
    progress: Callable[[float], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> list[Evaluation]:
    """Score each model (a directory, a Hugging Face id, `tiny`), checkpoint, and every checkpoint
    of each run, into the directory `out`; answers that are there already are kept.

    task         as in recipes; by default that of the run
    dataset      file or dataset with the prompts; all of it is used
    prompts, k   how many prompts, and answers to each; by default those of the run's validations,
                 16 answers for a model
    temperature  0 is greedy, with one answer a prompt
    recipe       presets or files for models that are not runs ("scalerl")
    changes      "key=value" of the recipe
    progress     called with the share of the work that is done
    say          called with warnings

    Needs `if __name__ == "__main__":` around it in a script: it starts processes.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        # A checker that is starting has imported the user's script, which calls this again.
        os._exit(UNGUARDED)
    # One thread per process, inherited by the checkers: small matrix products on contended threads
    # are many times slower.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not models:
        raise InputError("which model? give a run, a checkpoint or a model")
    if not 0.0 < level < 1.0:
        raise InputError(f"level {level}: give a number between 0 and 1, such as 0.9")
    named = None if dataset is None else str(dataset)
    asking = EvaluationOptions(task, named, prompts, k, temperature, tuple(changes))
    found = subjects(models, recipe)
    # All recipes and records first: what is wrong with any of them is reported before any work.
    recipes = [asking.recipe(each) for each in found]
    records = [EvaluationRecord(Path(out), *pair) for pair in zip(found, recipes, strict=True)]
    done = []
    for i, record in enumerate(records):

        def part(share: float, i: int = i) -> None:
            if progress is not None:
                progress((i + share) / len(records))

        done.append(_one(record, asking, level, part, say or _ignore))
        part(1.0)
    return done


def _ignore(line: str) -> None:
    """Drop a warning."""


def _one(
    record: EvaluationRecord,
    asking: EvaluationOptions,
    level: float,
    progress: Callable[[float], None],
    say: Callable[[str], None],
) -> Evaluation:
    subject, began = record.subject, time.monotonic()
    chosen: list[Prompt] = []

    def choose(task: Task) -> Sequence[Prompt]:
        chosen.extend(asking.choose(task, subject))
        return chosen

    setup = RunSetup.from_recipe(record.recipe, choose)
    record.recipe = setup.recipe  # with its chat date, which a resumed evaluation has to keep
    left_out = len(chosen) - len(setup.validation)
    if left_out > 0:
        say(
            f"{left_out} of {len(chosen)} prompts are left out: they are empty or longer than "
            f"sampling.max_prompt_tokens = {record.recipe.sampling.max_prompt_tokens}"
        )
    record.make()
    try:
        with RunLock(record.path):
            lines = _all_lines(record, setup, progress, say)
            in_order = [lines[prompt.id] for prompt in setup.validation]
            where = record.recipe.placement
            devices = where.generators * where.devices_per_generator
            return _score(record, in_order, level, devices * (time.monotonic() - began))
    finally:
        setup.task.close()


def _all_lines(
    record: EvaluationRecord,
    setup: RunSetup,
    progress: Callable[[float], None],
    say: Callable[[str], None],
) -> dict[str, list[AnswerLine]]:
    """The answers to all prompts: those on disk, and new ones for the others."""
    lines, subject = record.open(), record.subject
    asked = Validation.from_setup(setup).asked
    # By the prompt's id, which does not depend on how many prompts are asked.
    left = {key: one for key, one in asked.items() if one.prompt.id not in lines}
    if not left:
        return lines
    questions = Validation(setup, left).unanswered()
    with EvaluationWorkers(setup, subject.weights, say) as workers:
        for one, share in workers.score_answers(questions, subject.step):
            lines[one.prompt.id] = _lines(setup, one)
            record.append(lines[one.prompt.id])
            progress(share)
    return lines


def _lines(setup: RunSetup, asked: ValidationPrompt) -> list[AnswerLine]:
    return [
        AnswerLine(
            prompt=asked.prompt.id,
            n=n,
            task=asked.prompt.task,
            question=question_text(asked.prompt),
            answer=setup.episode_text(episode),
            correct=score.correct,
            reward=score.reward,
            why=score.why,
            tokens=len(episode),
            truncated=episode.truncated,
            finish=episode.finish,
            play=play_if_played(episode),
        )
        for n, (episode, score) in enumerate(asked.answered())
    ]


def _score(
    record: EvaluationRecord,
    answers: Sequence[Sequence[AnswerLine]],
    level: float,
    device_seconds: float,
) -> Evaluation:
    """The evaluation of the answers on disk; also writes its line there."""
    k = record.recipe.validation.k
    checked = [[AnswerScore(a.correct, a.reward, a.why) for a in of_one] for of_one in answers]
    found = set_score(checked, k)
    every = [a for of_one in answers for a in of_one]
    subject, scored = record.subject, found.scored or 0
    truncated = float(np.mean([a.truncated for a in every]))
    line = EvalLine(
        step=subject.step,
        version=subject.step,
        pass_rate=found.pass_rate,
        stderr=found.stderr,
        n_prompts=found.n_prompts,
        k=k,
        unscored=len(every) - scored,
        truncated=truncated,
        tasks=by_task((a[0].task, v) for a, v in zip(answers, checked, strict=True)),
        compute=subject.compute,
        validation_hours=device_seconds / 3600.0,
        scored=scored,
        failed=found.failed,
        play=Play.from_episodes((a.play or ONE_TURN, a.finish) for a in every),
    )
    record.close(line, every)
    mean = found.pass_rate
    outcomes = [
        (sum(a.correct is True for a in of_one), sum(a.correct is not None for a in of_one))
        for of_one in answers
    ]
    return Evaluation(
        model=subject.name,
        task=record.recipe.task.name,
        n_prompts=found.n_prompts,
        k=k,
        mean=mean,
        interval=None
        if mean is None
        else scores.interval(mean, found.stderr, found.n_prompts, level),
        pass_at=scores.pass_at_all(outcomes, k),
        level=level,
        stderr=found.stderr,
        step=None if subject.run is None else subject.step,
        truncated=truncated,
        unscored=line.unscored,
        failed=found.failed,
        play=line.play,
        path=str(record.path),
        answers=str(record.answers),
    )
