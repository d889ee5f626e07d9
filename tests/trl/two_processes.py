"""Run by torchrun: each process writes down where it stopped, why, and what it logged."""

import json
import sys
from pathlib import Path

import plain
import torch

from scalerl.callbacks import ForecastCallback

out = Path(sys.argv[1])
trainer = plain.trainer(out / "run", steps=200)
callback = ForecastCallback("eval_accuracy", x="samples", stop_when="end < 1.0", patience=1)
callback.attach(trainer)
trainer.train()
rank = trainer.args.process_index
record = {
    "step": trainer.state.global_step,
    "reason": callback.stop_reason,
    "fitted": callback.fit is not None,
    "forecasts": [r for r in trainer.state.log_history if "forecast/samples" in r],
}
(out / f"{rank}.json").write_text(json.dumps(record))
# Left to the interpreter's exit, gloo's teardown aborts now and then.
torch.distributed.barrier()
torch.distributed.destroy_process_group()
