"""Side metrics of a log, brought to its evaluations."""

import csv
import json

import numpy as np

from scalerl import fit, load_run


def write_csv(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


def test_columns_of_a_tracker_are_averaged_between_evaluations(tmp_path):
    rows = [
        {"step": i, "actor/grad_norm": 1.0 + i, "actor/entropy": 0.5,
         "val/accuracy": 0.1 * (i // 5) if i % 5 == 0 else ""}
        for i in range(1, 31)
    ]  # fmt: skip
    write_csv(tmp_path / "log.csv", rows)
    run = load_run(str(tmp_path / "log.csv"), x="step", y="val/accuracy")
    assert set(run.signs) == {"grad_norm", "entropy"}
    np.testing.assert_allclose(run.signs["grad_norm"], [4, 9, 14, 19, 24, 29])
    assert len(run.window(None, 20).signs["entropy"]) == 4


def test_an_own_run_reads_them_from_its_steps(tmp_path):
    evals = [
        {"step": s, "pass_rate": 0.1 + s / 200, "n_prompts": 50, "k": 4,
         "compute": {"device_hours": s / 10, "steps": s}}
        for s in range(0, 60, 10)
    ]  # fmt: skip
    (tmp_path / "evals.jsonl").write_text("".join(json.dumps(e) + "\n" for e in evals))
    steps = [{"step": s, "grad_norm": float(s), "ratio": {"max": 2.0}} for s in range(1, 51)]
    lines = [json.dumps(s) for s in steps]
    lines[7] = "{ damaged"
    lines.append('{"step": null, "grad_norm": 9}')
    (tmp_path / "steps.jsonl").write_text("\n".join(lines))
    run = load_run(str(tmp_path))
    assert np.isnan(run.signs["grad_norm"][0])
    np.testing.assert_allclose(run.signs["grad_norm"][2:], [15.5, 25.5, 35.5, 45.5])
    assert run.signs["ratio_max"][1] == 2.0
    assert fit(run).signs == ()
