"""The setup of a simulated run: the recipe's schedule and sizes, without a model or a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from scalerl.algorithm.curriculum import Curriculum, Uniform
from scalerl.algorithm.episode import Segment, Turn
from scalerl.algorithm.length import Limit
from scalerl.algorithm.options import options_from_recipe
from scalerl.engine.interface import Sampling
from scalerl.models.chat import Chat
from scalerl.pipeline.schedule import SCHEDULES
from scalerl.pipeline.setup import RunSetup
from scalerl.recipe import Recipe
from scalerl.runs.lines import EvalAnswers, Line, Status
from scalerl.runs.store import RunStore
from scalerl.tasks.task import Answer, AnswerScore, Prompt, Task, make_prompt
from scalerl.weights.interface import Layout

#: Entries of the arrays of the longest answer. An entry stands for as many tokens as that takes:
#: the loop handles arrays of tokens, and those of 10,000 would take gigabytes.
ENTRIES = 128
#: Training prompts of the simulated task. Which prompt is drawn changes nothing.
PROMPTS = 4096


class PlannedTask(Task):
    """Prompts without content; whether an answer is right is its token."""

    def __init__(self, held_out: int) -> None:
        # Prompts are held out by a hash: with a margin, so that there are enough.
        spare = int(1.2 * held_out) + 40
        super().__init__("planned", held_out_share=spare / (PROMPTS + spare))
        self._prompts = [make_prompt("planned", str(i), None) for i in range(PROMPTS + spare)]

    def prompts(self) -> Sequence[Prompt]:
        return self._prompts

    def score(self, prompt: Prompt, completion: str) -> tuple[bool, str]:
        return completion == "1", ""


class PlannedTokenizer:
    """The least of a tokenizer that a setup needs."""

    chat_template = None
    eos_token_id = 0

    def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
        return {"input_ids": [1]}

    def decode(self, ids: Sequence[int], **options: Any) -> str:
        return str(ids[0]) if ids else ""

    def convert_ids_to_tokens(self, token: int) -> str:
        return str(token)


_PROMPT = np.ones(1, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class PlannedSetup(RunSetup):
    """A setup whose prompts have one token and whose answers are not decoded."""

    def tokens_of(self, prompt: Prompt) -> npt.NDArray[np.int64]:
        return _PROMPT

    def answer(self, prompt: Prompt, token_ids: npt.NDArray[np.int64], step: int) -> Answer:
        return Answer(prompt, "1" if token_ids[0] else "0", (), step)

    def fits(self, prompt: Prompt) -> bool:
        return True


@dataclass(frozen=True, slots=True, eq=False)
class PlannedTurn(Turn):
    """A turn with its versions as run-lengths, in entries."""

    runs: tuple[tuple[int, int], ...] = ()

    def segments(self) -> tuple[Segment, ...]:
        return (Segment("policy", len(self.token_ids), self.runs),)


def planned_recipe(recipe: Recipe, steps: int) -> Recipe:
    """The recipe as it is simulated: what costs no simulated time is switched off."""
    changes: dict[str, Any] = {
        "curriculum.name": "uniform",
        "record.episodes_per_step": 0,
        "record.validation_megabytes": 0,
        "filter.empty_steps": 0,
        "filter.truncated": "keep",
        "checkpoint.every": steps + 1,
        "budget.steps": steps,
        "budget.gpu_hours": None,
        "budget.minutes": None,
        "placement.deterministic": False,
        "placement.environment_processes": None,
        "placement.backend": "inline",
        "placement.engine": "simulated",
        "placement.trainer": "simulated",
        "precision.routing": "own",
        "compute.axis": "steps",
        "validation.also_temperatures": (),
    }
    return recipe.replace(changes)


@lru_cache(maxsize=4)
def _task(held_out: int) -> PlannedTask:
    return PlannedTask(held_out)


def planned_setup(recipe: Recipe) -> PlannedSetup:
    """The setup of a recipe that `planned_recipe` returned."""
    import torch

    task = _task(recipe.validation.prompts)
    train = {p.id: p for p in task.train_prompts(recipe.seed)}
    tokenizer = PlannedTokenizer()
    control = Limit(ENTRIES, (0,))
    return PlannedSetup(
        recipe=recipe,
        task=task,
        tokenizer=tokenizer,
        chat=Chat(tokenizer),
        hidden=frozenset(),
        prompts=train,
        validation=tuple(task.validation_prompts(recipe.validation.prompts)),
        downstream={},
        curriculum=Curriculum(list(train), Uniform(), recipe.seed),
        schedule=SCHEDULES[recipe.schedule.name](recipe.schedule.k, recipe.batch.prompts),
        control=control,
        validation_control=control,
        sampling=Sampling(),
        validation_sampling=Sampling(),
        model="planned",
        device="cpu",
        options=options_from_recipe(recipe),
        layout=Layout((), (), torch.float32),
        parameters=1,
        columns=ENTRIES,
        slots=1,
        validation_slots=1,
    )


class MemoryStore(RunStore):
    """A record that is kept in memory."""

    def __init__(self) -> None:
        self.path = Path("planned")
        self.lines: list[Line] = []

    def append(self, line: Line) -> None:
        self.lines.append(line)

    def append_episodes(self, lines: Any, most: int, kind: Any = None) -> None:
        """Nothing: simulated episodes have no content."""

    def status(self, status: Status) -> None:
        """Nothing: there is no process to look at."""

    def save_answers(self, answers: EvalAnswers) -> None:
        """Nothing: simulated answers have no content."""

    def take_generator_request(self) -> int | None:
        return None


def score_of(answer: Answer) -> AnswerScore:
    """The score of a simulated answer."""
    right = answer.text == "1"
    return AnswerScore(right, float(right), "")
