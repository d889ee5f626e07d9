"""Losses and aggregations of one's own: found, checked against their signatures, and sent along."""

import inspect
import pickle
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from flat import token_batch

from scalerl.algorithm.advantages import NORMALISATIONS
from scalerl.algorithm.aggregation import AGGREGATIONS
from scalerl.algorithm.credit import CREDITS
from scalerl.algorithm.losses import KL_ESTIMATORS, LOSSES
from scalerl.algorithm.objective import objective
from scalerl.algorithm.options import options_from_recipe
from scalerl.errors import InputError
from scalerl.recipe import Recipe
from scalerl.recipe.losses import AGGREGATION_NAMES, LOSS_CONSTANTS, LOSS_NAMES

#: The options of the default recipe.
SCALERL = options_from_recipe(Recipe())

MODULE = """
from scalerl.algorithm.advantages import NORMALISATIONS
from scalerl.algorithm.aggregation import AGGREGATIONS
from scalerl.algorithm.credit import CREDITS
from scalerl.algorithm.batch import TokenLoss, log_ratio
from scalerl.algorithm.losses import LOSSES

@LOSSES.register("plain-soft")
def soft(logprobs_N, batch, *, floor, width=0.5):
    log_rho_N, safe_N, usable_N = log_ratio(logprobs_N, batch)
    loss_N = -batch.advantages_N * safe_N * width + floor
    clipped_N = usable_N & (log_rho_N > 0)
    metrics = {"above_one": float(clipped_N.double().mean())}
    return TokenLoss(loss_N, log_rho_N.detach().exp(), clipped_N, usable_N, metrics)

def anything(logprobs_N, batch, **constants):
    return soft(logprobs_N, batch, floor=constants["floor"])

def lonely(logprobs_N):
    return None

def nested():
    return lambda logprobs_N, batch: None
LOSSES.register("nested")(nested())

@AGGREGATIONS.register("rows-alike")
def rows_alike(batch, counted_N, length):
    return 1.0 / (0 * counted_N + len(batch))

def two(batch, counted_N):
    return counted_N
number = 3
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of a user, imported; what it registers is forgotten afterwards."""
    for registry, names in ((LOSSES, LOSS_NAMES), (AGGREGATIONS, AGGREGATION_NAMES)):
        monkeypatch.setattr(registry, "_found", dict(registry._found))
        monkeypatch.setattr(names, "_known", list(names._known))
    (tmp_path / "my_losses.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_losses", raising=False)
    import my_losses

    yield my_losses
    sys.modules.pop("my_losses", None)


def options(*overrides):
    return options_from_recipe(Recipe.load("scalerl", overrides=overrides))


def batch():
    return token_batch([3, 3], -torch.ones(6), [1.0, -1.0], dtype=torch.float32)


def test_recipe_and_signature_state_the_same_constants_for_every_built_in_loss():
    assert set(LOSS_CONSTANTS) == set(LOSSES)
    for name, constants in LOSS_CONSTANTS.items():
        parameters = list(inspect.signature(LOSSES[name]).parameters.values())[2:]
        assert {p.name: p.default for p in parameters} == constants().model_dump(), name


def test_built_in_aggregations_are_the_names_that_recipes_know():
    assert list(AGGREGATION_NAMES._known) and set(AGGREGATION_NAMES._known) == set(AGGREGATIONS)


def test_a_recipe_becomes_functions_with_their_constants():
    found = options("loss.name=dapo", "loss.clip_high=0.3", "loss.aggregation=token")
    assert found.loss is LOSSES["dapo"] and found.aggregation is AGGREGATIONS["token"]
    assert found.constants == {"clip_low": 0.2, "clip_high": 0.3}
    assert found.normalisation is NORMALISATIONS["batch"]
    assert found.credit is CREDITS["episode"] and found.kl_estimator is KL_ESTIMATORS["k3"]
    assert (found.zero_variance, found.truncated) == ("drop", "drop")


def test_the_constant_length_is_the_longest_rollout_under_every_control():
    assert options().constant_length == 14336.0
    assert options("length.control=none", "length.max_tokens=100").constant_length == 100.0


def test_a_loss_given_by_import_path_gets_its_constants(mine):
    found = options("loss.name=my_losses:soft", "loss.floor=0.25")
    assert found.loss is mine.soft and found.constants == {"floor": 0.25}
    assert options("loss.name=my_losses:anything", "loss.whatever=1").constants == {"whatever": 1}


def test_a_registered_loss_may_be_named_once_its_module_is_imported(mine):
    assert options("loss.name=plain-soft", "loss.floor=0.25").loss is mine.soft
    assert options("loss.aggregation=rows-alike").aggregation is mine.rows_alike
    with pytest.raises(InputError, match="did you mean plain-soft"):
        options("loss.name=plain-sof")


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["loss.name=my_losses:soft"], "loss my_losses:soft needs loss.floor"),
        (
            ["loss.name=my_losses:soft", "loss.floor=1", "loss.widht=2"],
            "which takes floor, width: did you mean loss.width?",
        ),
        (["loss.name=my_losses:soft", "loss.floor=1", "loss.zz=2"], "leave it out"),
        (
            ["loss.name=my_losses:soft", "loss.floor=1", "loss.batch=2"],
            "loss.batch is no constant of my_losses:soft, which takes floor, width",
        ),
        (["loss.name=my_losses:lonely"], "must take (logprobs, batch) before its constants"),
        (["loss.name=my_losses:missing"], "cannot be imported"),
        (["loss.name=no.such:loss"], "cannot be imported"),
        (["loss.name=my_losses:number"], "is not a loss but a int"),
        (["loss.name=nested"], "at the top level of a module"),
        (["loss.aggregation=my_losses:two"], "cannot be called with (batch, counted_N, length)"),
    ],
)
def test_what_is_wrong_with_a_loss_of_ones_own_is_said_before_a_run_starts(mine, overrides, says):
    with pytest.raises(InputError) as caught:
        options(*overrides)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_another_process_can_use_a_loss_that_only_a_decorator_named(mine, tmp_path):
    found = options("loss.name=plain-soft", "loss.floor=0.0", "loss.aggregation=rows-alike")
    (tmp_path / "options.pickle").write_bytes(pickle.dumps(found))
    code = (
        "import pickle, sys, torch\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        f"options = pickle.load(open({str(tmp_path / 'options.pickle')!r}, 'rb'))\n"
        "print(options.loss.__name__, options.aggregation.__name__, options.constants)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split(maxsplit=2) == ["soft", "rows_alike", "{'floor': 0.0}\n"]


def test_a_loss_says_its_own_metrics_of_the_tokens_it_was_called_with(mine):
    logprobs_N = torch.tensor([-0.5, -1.5, -1.0, -2.0, -2.0, -2.0])
    chosen = replace(SCALERL, loss=mine.soft, constants={"floor": 0.0})
    whole = batch()
    assert objective(logprobs_N, whole, chosen).tokens.metrics == {"above_one": 1 / 6}
    part, at_N = whole.take(np.array([0]))
    first = objective(logprobs_N[at_N], part, chosen)
    assert first.tokens.metrics == {"above_one": pytest.approx(1 / 3)}
    assert objective(logprobs_N, whole, SCALERL).tokens.metrics == {}


def test_reading_recipes_and_their_losses_needs_no_torch():
    code = (
        "import sys\n"
        "from scalerl.cli import main\n"
        "main(['recipe', 'show', 'base', 'loss.clip_high=0.3'])\n"
        "main(['recipe', 'show', 'scalerl', 'loss.name=my.own:loss', 'loss.constant=1'])\n"
        "assert main(['recipe', 'show', 'scalerl', 'loss.name=cispoo']) == 2\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
    assert "clip_high = 0.3" in done.stdout and "constant = 1" in done.stdout
