"""An engine, a placement and a loss from outside the package (docs/how-to/add-an-engine.md)."""

# -- imports
import sys
from collections import Counter

import numpy as np
import torch

from scalerl.algorithm.batch import TokenLoss, log_ratio
from scalerl.algorithm.episode import Turn
from scalerl.algorithm.length import Continue, Finish
from scalerl.algorithm.losses import LOSSES
from scalerl.engine.interface import EngineStep, Health, TurnResult
from scalerl.engine.registry import ENGINES
from scalerl.engine.sampling import sample, uniform
from scalerl.models.head import use_head_precision
from scalerl.models.load import load_model
from scalerl.pipeline.crew import MessageReceived
from scalerl.placement.processes import ProcessCrew, RealClock
from scalerl.placement.registry import PLACEMENTS


# -- engine
class Text:
    """One turn under way."""

    def __init__(self, request, row):
        self.request, self.row, self.seed = request, row, request.seeds[row]
        self.progress = request.control.start(self.seed)
        self.log = []  # token, log-prob, version, forced

    def add(self, tokens, logprob, version, forced=False):
        self.progress = self.progress.after(self.request.control, tokens, forced=forced)
        self.log += [(token, logprob, version, forced) for token in tokens]

    def written(self, finish):
        columns = list(zip(*self.log, strict=True)) or [()] * 4
        kinds = np.int64, np.float32, np.int64, bool
        arrays = [np.array(c, dtype=kind) for c, kind in zip(columns, kinds, strict=True)]
        return TurnResult(self.request.id, self.row, Turn(*arrays, finish))


class ToyEngine:
    """Reads every text from its beginning for every token: slow, and hard to get wrong."""

    def __init__(self, spec):
        self.model = load_model(spec.model, spec.dtype, spec.device).eval()
        use_head_precision(self.model, spec.head)
        self.version = 0
        self.lanes = {"train": [], "validate": []}

    def submit(self, requests, lane="train"):
        self.lanes[lane] += [Text(request, row) for request in requests for row in request.seeds]

    def health(self):
        lane = "validate" if self.lanes["validate"] else "train"
        return Health(self.version, 0, sum(map(len, self.lanes.values())), lane)

    @torch.inference_mode()
    def step(self):
        lane, written, tokens = self.health().lane, [], 0
        for text in list(self.lanes[lane]):
            decision = text.request.control.decide(text.progress)
            if isinstance(decision, Finish):
                written.append(text.written(decision.reason))
                self.lanes[lane].remove(text)
            elif isinstance(decision, Continue):
                text.add(*self.draw(text), self.version)
                tokens += 1
            else:  # the length control writes its phrase
                text.add(decision.token_ids, 0.0, self.version, forced=True)
                tokens += len(decision.token_ids)
        return EngineStep(lane, tuple(written), tokens)

    def draw(self, text):
        """A token, and its log-prob under the very distribution that it is drawn from."""
        how, ids = text.request.sampling, [entry[0] for entry in text.log]
        whole = torch.tensor([[*text.request.prompt_token_ids, *ids]], device=self.model.device)
        logits_1V = self.model(whole).logits[:, -1].cpu()
        settings = [torch.tensor([x]) for x in (how.temperature, how.top_p, how.top_k)]
        seed = torch.from_numpy(np.array([text.seed], dtype=np.uint64).view(np.int64))
        token, logprob = sample(logits_1V, *settings, uniform(seed, torch.tensor([len(ids)])))
        return [int(token)], float(logprob)

    @torch.no_grad()
    def load(self, weights, version):
        for name, parameter in self.model.named_parameters():
            parameter.copy_(weights[name])
        self.version = version

    def abort(self, ids):
        gone = [t for texts in self.lanes.values() for t in texts if t.request.id in ids]
        self.lanes = {k: [t for t in v if t not in gone] for k, v in self.lanes.items()}
        return [text.written("aborted") for text in gone]


@ENGINES.register("toy")
def toy_engine(spec):
    return ToyEngine(spec)


# -- placement
class CountingCrew(ProcessCrew):
    """Processes of this machine, and a count of what they say."""

    def __init__(self, setup, checkpoint):
        self.heard = Counter()
        super().__init__(setup, checkpoint)

    def poll(self, seconds):
        found = super().poll(seconds)
        self.heard.update(type(e.message).__name__ for e in found if isinstance(e, MessageReceived))
        return found

    def stop(self, *, at_once=False):
        super().stop(at_once=at_once)
        print("heard:", dict(self.heard), file=sys.stderr)


@PLACEMENTS.register("toy")
def toy_placement(setup, checkpoint):
    return CountingCrew(setup, checkpoint), RealClock()


# -- loss
@LOSSES.register("toy")
def toy_loss(logprobs_N, batch, *, wrong):
    """REINFORCE in which wrong answers count `wrong` times as much as right ones."""
    log_rho_N, safe_N, usable_N = log_ratio(logprobs_N, batch)
    wrong_N = usable_N & (batch.advantages_N < 0)
    loss_N = -torch.where(wrong_N, wrong, 1.0) * batch.advantages_N * safe_N * usable_N
    metrics = {"wrong_share": float(wrong_N.sum() / usable_N.sum().clamp(min=1))}
    clipped_N = torch.zeros_like(usable_N)  # this loss clips nothing
    return TokenLoss(loss_N, log_rho_N.detach().exp(), clipped_N, usable_N, metrics)
