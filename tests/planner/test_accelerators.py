"""The table of accelerators and the shapes of models."""

import tomllib

import pytest

from scalerl.errors import InputError
from scalerl.planner.accelerators import TABLE, Accelerator, accelerators
from scalerl.planner.model_shape import TABLE as MODELS
from scalerl.planner.model_shape import ModelShape


@pytest.mark.parametrize("name", accelerators())
def test_no_number_is_the_sparse_one(name):
    """Tensor cores do twice as much in each narrower type: a sparse number among dense ones breaks
    the ratio."""
    device = Accelerator.named(name)
    if device.fp8 is not None:
        assert device.fp8 == pytest.approx(2 * device.bf16, rel=0.02)
    assert device.tf32 is not None and device.bf16 == pytest.approx(2 * device.tf32, rel=0.02)
    # A row that is sparse throughout: no device has more than 450 products a byte.
    assert 30 < 1e3 * device.bf16 / device.gb_s < 450
    assert device.source and device.confidence in ("high", "medium", "low")


def test_h100_and_h200_are_one_chip():
    a, b = Accelerator.named("h100-sxm"), Accelerator.named("h200")
    assert (a.bf16, a.fp8, a.fp32) == (b.bf16, b.fp8, b.fp32) and a.gb_s < b.gb_s


def test_users_add_devices_in_a_file_of_their_own(tmp_path):
    mine = tmp_path / "mine.toml"
    row = TABLE.read_text().split("[h100-sxm]")[1].split("\n\n")[0]
    mine.write_text("[mine]" + row.replace("gb = 80", "gb = 96"))
    assert Accelerator.named("mine", mine).gb == 96
    assert Accelerator.named("h200", mine).gb == 141


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[x]\nbf16 = 1.0\n", "lacks"),
        ("[x]\nspeed = 1.0\n", "unknown key 'speed'"),
        ("x = 3\n", "must be a table"),
        ("[x", "cannot be read"),
    ],
)
def test_a_bad_table_is_one_line(tmp_path, text, words):
    (tmp_path / "t.toml").write_text(text)
    with pytest.raises(InputError, match=words) as error:
        Accelerator.named("h100-sxm", tmp_path / "t.toml")
    assert "\n" not in str(error.value)


def test_an_unknown_device_gets_the_nearest_name():
    with pytest.raises(InputError, match="did you mean h100-sxm"):
        Accelerator.named("h100sxm")


@pytest.mark.parametrize("name", tomllib.loads(MODELS.read_text()))
def test_a_shape_adds_up_to_the_parameters_of_its_model(name):
    known = tomllib.loads(MODELS.read_text())[name]["parameters"]
    assert ModelShape.named(name).parameters / 1e9 == pytest.approx(known, rel=0.01)


def test_a_shape_is_read_from_the_config_of_a_model_that_is_here():
    from scalerl.models.load import model_path

    shape = ModelShape.named(model_path("tiny"))
    assert shape.layers > 0 and 1e4 < shape.parameters < 1e7


def test_an_unknown_model_says_what_to_give():
    with pytest.raises(InputError, match=r"config\.json"):
        ModelShape.named("nobody/nothing-7B")
