"""Whatever a config holds, importing it gives a recipe or a one-line error."""

import json
import tomllib
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.errors import InputError
from scalerl.recipe import Recipe
from scalerl.recipe.importers import from_prime_rl, from_trl, from_verl
from scalerl.recipe.importers.hydra import read_overrides
from scalerl.recipe.importers.result import flatten
from scalerl.recipe.load import nest

FIXTURES = Path(__file__).parent / "fixtures"
TRL = json.loads((FIXTURES / "grpo_config.json").read_text())
PRIME_RL = flatten(tomllib.loads((FIXTURES / "prime_rl_scalerl.toml").read_text()))
VERL = flatten(read_overrides((FIXTURES / "verl_cispo.sh").read_text(), "verl_cispo.sh"))

anything = st.one_of(
    st.none() | st.booleans() | st.integers(-5, 200) | st.floats() | st.text(max_size=5),
    st.sampled_from([[1], {"a": 1}, "batch", "none", "1e-6", "inf", "nan", "steps", "grpo"]),
)


def changed(config):
    return st.dictionaries(st.sampled_from(sorted(config)), anything, max_size=4).map(
        lambda changes: {**config, **changes}
    )


def check(importing, *arguments, **options):
    try:
        found = importing(*arguments, **options)
    except InputError as error:
        assert str(error) and "\n" not in str(error)
    else:
        assert Recipe.load(tomllib.loads(found.recipe.to_toml())) == found.recipe
        assert all(found.lines())


@settings(max_examples=150, deadline=None)
@given(changed(TRL), st.integers(0, 4))
def test_any_grpo_config(config, processes):
    check(from_trl, config, processes=processes)


@settings(max_examples=150, deadline=None)
@given(changed(PRIME_RL))
def test_any_prime_rl_config(config):
    check(from_prime_rl, nest(config))


@settings(max_examples=150, deadline=None)
@given(changed(VERL))
def test_any_verl_config(config):
    check(from_verl, nest(config))


@settings(max_examples=150, deadline=None)
@given(st.text("ab.=+$(){}[]*/1 \n\\'\"", max_size=60))
def test_any_launch_script(text):
    try:
        found = read_overrides(text, "launch.sh")
    except InputError as error:
        assert str(error) and "\n" not in str(error)
    else:
        assert isinstance(found, dict)
