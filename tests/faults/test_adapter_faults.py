"""Kills in a run with adapters: nothing is lost, and each replacement proves its adapter again."""

import pytest

from faults import SMALL, Victim, kill, lines, problems


def proofs(run):
    return sum("has proved" in (e.get("why") or "") for e in lines(run.out / "events.jsonl"))


@pytest.mark.parametrize("placed", [["placement.trainers=1"], ["placement.trainers=2"]])
def test_replacements_prove_their_adapter(tmp_path, placed):
    run = Victim(tmp_path / "run", [*SMALL, *placed, "adapter.rank=4"])
    run.begin()
    try:
        for name in ("generator 0", "trainer" if "=1" in placed[0] else "trainer rank 1"):
            run.wait(lambda: not run.status["starting"], "all workers")
            before, step, pid = proofs(run), run.step, run.pid(name)
            kill(pid)
            run.wait(lambda: run.pid(name) not in (0, pid), f"another {name}")  # noqa: B023
            run.wait(lambda: run.step > step, "the next step")  # noqa: B023
            run.wait(lambda: proofs(run) > before, "another proof")  # noqa: B023
        run.end()
    finally:
        run.process.kill()
    assert problems(run) == []
