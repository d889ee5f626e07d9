"""Generators that come and go, on the virtual clock: what is recorded, and what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
from worlds import RandomWorld

from scalerl.cli import main
from scalerl.pipeline import branches
from scalerl.placement.inline import InlineGenerator
from scalerl.placement.world import Duration, Fault
from scalerl.recipe import Recipe
from scalerl.runs.lines import EventLine
from scalerl.runs.lock import RunLock
from scalerl.runs.store import RunStore

PIPELINE = {"schedule.name": "pipeline", "placement.deterministic": False,
            "placement.generators": 2, "batch.generations": 4}  # fmt: skip


def lived(tmp_path, *faults, decode=0.05, **changes):
    world = RandomWorld(3, **(PIPELINE | changes))
    world.generations, world.steps = 4, world.recipe.budget.steps
    world.slots, world.max_tokens = 40, 10
    calm = {"start": Duration(0.1), "hangs": 0.0, "crashes": 0.0, "train": Duration(1.5),
            "decode": Duration(decode)}  # fmt: skip
    world.world = replace(world.world, faults=faults, **calm)
    world.live(tmp_path / "run")
    return world


def events(world, kind):
    return [e.why for e in world.store.read(EventLine) if e.event == kind]


def scaled(at, generators):
    return Fault(at, "scale", generators=generators)


def test_the_record_and_the_recipe_say_how_many_there_are(tmp_path):
    world = lived(tmp_path, scaled(2.0, 4), scaled(6.0, 1))
    assert events(world, "scale") == ["placement.generators 2 → 4", "placement.generators 4 → 1"]
    assert [g.name for g in world.crew.generators] == ["generator 0"]
    assert world.crew.loop.ledger.generators == 1
    assert branches.recipe_of(world.store.path).placement.generators == 1
    assert not (world.store.path / "scale.json").exists()


def test_what_one_that_leaves_had_begun_is_counted_as_wasted(tmp_path):
    world = lived(tmp_path, scaled(9.0, 1), decode=0.5)
    rollouts, tokens = world.crew.loop.ledger.wasted["failed"]
    assert rollouts > 0 and tokens > 0


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"placement.deterministic": True}, "does not allow the number to change"),
        ({"schedule.name": "off-policy", "batch.generations": 4}, "cannot be split evenly"),
    ],
)
def test_a_wish_that_cannot_be_is_a_warning(tmp_path, changes, why):
    world = lived(tmp_path, scaled(2.0, 7), **changes)
    (line,) = events(world, "warning")
    assert line.startswith("the request for 7 generators is refused: ") and why in line
    assert len(world.crew.generators) == 2 and events(world, "scale") == []


def test_one_that_never_comes_up_is_given_up_and_the_run_goes_on(tmp_path, monkeypatch):
    start = InlineGenerator.start

    def never(self):
        if self.name == "generator 2":
            self.die("died: out of memory")
        else:
            start(self)

    monkeypatch.setattr(InlineGenerator, "start", never)
    world = lived(tmp_path, scaled(1.0, 3), **{"budget.steps": 15})
    assert len(events(world, "lost")) == 5
    assert any("goes on with 2 generators" in line for line in events(world, "warning"))


def test_the_command_asks_a_run_that_goes_on_and_no_other(tmp_path, capsys):
    out = Path(tmp_path) / "run"
    store = RunStore(out)
    branches.write_recipe(store, Recipe.load("scalerl", "tiny"))
    assert main(["scale", str(out), "--generators", "2"]) == 2
    assert "is not running" in (said := capsys.readouterr().err)
    assert f"scalerl train --resume {out} placement.generators=2" in said
    with RunLock(out):
        assert main(["scale", str(out), "--generators", "0"]) == 2
        assert main(["scale", str(out), "--generators", "2"]) == 0
    assert store.take_generator_request() == 2
    assert store.take_generator_request() is None
    (out / "scale.json").write_text("{")
    assert store.take_generator_request() is None, "what cannot be read is nothing"
