"""Every choice of a recipe that is found in a registry, from outside the package."""

import importlib
import json
import sys

import pytest

import scalerl
from scalerl.algorithm.advantages import NORMALISATIONS
from scalerl.algorithm.credit import CREDITS
from scalerl.algorithm.curriculum import CURRICULA
from scalerl.algorithm.filters import FILTERS
from scalerl.algorithm.length_controls import LENGTH_CONTROLS
from scalerl.algorithm.losses import KL_ESTIMATORS
from scalerl.errors import InputError
from scalerl.pipeline.schedule import SCHEDULES
from scalerl.pipeline.setup import RunSetup
from scalerl.recipe.fields import names_of
from scalerl.recipe.problems import known_fields

REGISTRIES = (
    NORMALISATIONS,
    CREDITS,
    FILTERS,
    KL_ESTIMATORS,
    CURRICULA,
    LENGTH_CONTROLS,
    SCHEDULES,
)
SMALL = ["placement.backend=inline", "batch.prompts=2", "batch.generations=2",
         "validation.prompts=2", "validation.k=1", "filter.zero_variance=keep", "budget.steps=2",
         "task.options.prompts=20"]  # fmt: skip
PLAY = ["task.name=environment:tiny-tools", "task.options={}", "model.path=tiny-tools",
        "environment.turns=2", "environment.observation_tokens=9", "length.control=none",
        "length.max_tokens=20"]  # fmt: skip
THINK = ["length.think_tokens_min=8", "length.think_tokens_max=12", "length.answer_tokens=3"]
#: Function or class -> its registered name, the key that chooses it, and what it needs besides.
CHOICES = {
    "sign": ("toy-sign", "advantage.normalisation", THINK),
    "last": ("toy-last", "advantage.credit", PLAY),
    "distance": ("toy-distance", "loss.kl_estimator", [*THINK, "loss.kl_coefficient=0.1"]),
    "brief": ("toy-brief", "filter.further", THINK),
    "Few": ("toy-few", "curriculum.name", [*THINK, "curriculum.rollouts=2"]),
    "share": ("toy-share", "length.control", ["length.max_tokens=20", "length.percent=40"]),
    "Turns": ("toy-turns", "schedule.name", THINK),
}


@pytest.fixture(autouse=True)
def toy():
    """The module; its names are gone again after each test, since others count what there is."""
    before = [dict(registry._found) for registry in REGISTRIES]
    announced = [registry._announce.__self__ for registry in REGISTRIES]
    names = [list(known) for known in announced]
    yield importlib.import_module("toy_choices")
    for registry, found, known, listed in zip(REGISTRIES, before, announced, names, strict=True):
        registry._found, known._known = found, listed
    sys.modules.pop("toy_choices", None)


def load(key, name, needs=()):
    value = json.dumps([name]) if key == "filter.further" else name
    return scalerl.Recipe.load("scalerl", "tiny", overrides=[*SMALL, *needs, f"{key}={value}"])


@pytest.mark.parametrize("function", CHOICES)
def test_a_run_with_a_choice_of_ones_own(function, toy, tmp_path):
    name, key, needs = CHOICES[function]
    recipe = load(key, name, needs)
    assert scalerl.train(recipe, tmp_path / "run").reason == "budget of 2 steps"
    assert toy.CALLS[function] > 0
    steps = [json.loads(line) for line in (tmp_path / "run/steps.jsonl").open()]
    assert len(steps) == 2
    if function == "share":
        assert all(step["length"]["max"] == 8 for step in steps)
    if function == "Turns":
        assert all(step["staleness"]["max"] == 0 for step in steps)
    if function == "brief":
        assert all(step["filtered"]["effective_rollouts"] < 4 for step in steps)
    if function == "Few":
        assert steps[-1]["retired"] >= 4


@pytest.mark.parametrize("function", CHOICES)
def test_its_import_path_is_the_same_choice(function, toy):
    name, key, needs = CHOICES[function]
    by_path = load(key, f"toy_choices:{function}", needs)
    RunSetup.from_recipe(by_path)
    by_name = load(key, name, needs)
    assert by_path != by_name and scalerl.Recipe.load(by_name.to_dict()) == by_name


@pytest.mark.parametrize("function", CHOICES)
def test_a_misspelt_name_is_refused_when_the_recipe_is_read(function):
    name, key, needs = CHOICES[function]
    with pytest.raises(InputError, match=f"did you mean {name}") as caught:
        load(key, name[:-1], needs)
    assert str(caught.value).startswith(f"{key}: ") and "\n" not in str(caught.value)


def test_the_names_of_the_recipe_are_those_of_the_registries(toy):
    fields = known_fields()
    for (_, key, _), registry in zip(CHOICES.values(), (
        NORMALISATIONS, CREDITS, KL_ESTIMATORS, FILTERS, CURRICULA, LENGTH_CONTROLS, SCHEDULES,
    ), strict=True):  # fmt: skip
        if key != "filter.further":  # a list of names
            assert set(names_of(fields[key])) == set(registry), key


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["length.control=toy-share", "length.max_tokens=9"], "needs length.percent"),
        (["length.control=toy-share", "length.percent=9"], "needs length.max_tokens"),
        (["length.control=toy-share", "length.max_tokens=9", "length.percnt=9"],
         "did you mean length.percent?"),
        (["length.control=toy_choices:sign", "length.max_tokens=9"], "max_tokens is no constant"),
        (["length.control=toy_choices:CALLS", "length.max_tokens=9"], "is not a length control"),
        (["length.control=toy_choices:local", "length.max_tokens=9"], "sent to another process"),
        (["curriculum.name=toy-few"], "needs curriculum.rollouts"),
        (["curriculum.name=toy-few", "curriculum.threshold=0.5"], "threshold is no constant of"),
        (["curriculum.name=builtins:dict"], "has no retires"),
        (["schedule.name=toy_choices:brief"], "cannot be called with (k, prompts)"),
        (["schedule.name=builtins:max"], "has no choose"),
        (["curriculum.name=builtins:int", "curriculum.x=2"], "cannot be made: TypeError"),
        (["schedule.name=toy-turns", "filter.zero_variance=refill"], "a schedule that streams"),
        (['filter.further=["toy_choices:sign"]'], "cannot be called with (candidates)"),
        (["advantage.normalisation=toy_choices:brief"], "cannot be called with (values_K"),
        (["loss.kl_coefficient=0.1", "loss.kl_estimator=toy_choices:share"], "(gap_N)"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_it_is_said_in_one_line_before_a_run_starts(changes, says):
    with pytest.raises(InputError) as caught:
        RunSetup.from_recipe(scalerl.Recipe.load("scalerl", "tiny", overrides=[*SMALL, *changes]))
    assert says in str(caught.value) and "\n" not in str(caught.value)
