"""AdamW without torch's compiler: the same numbers, bit for bit, and the same state."""

import torch

from scalerl.recipe.sections_runtime import OptimiserSection
from scalerl.trainer.optimisers import OPTIMISERS


def test_it_steps_and_resumes_as_torchs_own_bit_for_bit():
    torch.manual_seed(0)
    start = [torch.randn(7, 5), torch.randn(5)]
    ours = [p.clone().requires_grad_() for p in start]
    theirs = [p.clone().requires_grad_() for p in start]
    settings = OptimiserSection(lr=1e-2)
    quick = OPTIMISERS["adamw"](ours, settings)
    plain = torch.optim.AdamW(theirs, lr=1e-2, betas=settings.betas, eps=settings.eps,
                              weight_decay=settings.weight_decay)  # fmt: skip
    for i in range(6):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        quick.step()
        plain.step()
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        if i == 2:  # go on from what was saved
            saved = quick.state_dict()
            quick = OPTIMISERS["adamw"](ours, settings)
            quick.load_state_dict(saved)
    assert quick.state_dict()["state"].keys() == plain.state_dict()["state"].keys()
    assert torch.is_grad_enabled()
