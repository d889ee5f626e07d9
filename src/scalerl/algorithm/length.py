"""Length control: forced interruption and the length penalty (paper, section 3.8).

Forced interruption. Each rollout gets a thinking budget, uniform in [think_min, think_max]. If the
end of thinking (`</think>`) has not come when the budget is used up, a phrase is appended for the
model ("Okay, time is up. … </think>"): forced tokens, flagged and out of the loss, because the
policy did not sample them. Then `answer_tokens` more may be sampled. If the end of thinking comes
by itself, `answer_tokens` more may be sampled after it.

The rules are data: an engine of any kind keeps one `Progress` per rollout and asks what to do.

>>> control = Interruption(phrase_ids=(8, 9), end_think_ids=(9,), think_min=2, think_max=2,
...                        answer_tokens=1, stop_ids=(0,))
>>> progress = control.start(seed=0).after(control, [5, 6])
>>> control.decide(progress)
Force(token_ids=(8, 9))
>>> progress = progress.after(control, [8, 9], forced=True)
>>> control.decide(progress)
Continue(room=1)
>>> control.decide(progress.after(control, [7])), control.decide(progress.after(control, [0]))
(Finish(reason='length'), Finish(reason='interrupted'))
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from scalerl.errors import InputError


@dataclass(frozen=True, slots=True)
class Continue:
    """Sample on; at most `room` tokens before asking again, so that no limit is overrun."""

    room: int


@dataclass(frozen=True, slots=True)
class Force:
    """Append these tokens, flagged as forced, then ask again."""

    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """The rollout is over. `stop`: the model ended it; `interrupted`: the phrase was forced and the
    model then ended its answer; `length`: the answer budget ran out (truncated, whether or not the
    phrase was forced)."""

    reason: Literal["stop", "interrupted", "length"]


Decision = Continue | Force | Finish


@dataclass(frozen=True, slots=True)
class Progress:
    """Where one rollout stands. Positions count generated tokens, forced ones included."""

    #: Thinking tokens before the phrase is forced.
    budget: int
    n_tokens: int = 0
    #: The latest tokens, as many as can begin an end of thinking that is not yet whole.
    tail: tuple[int, ...] = ()
    #: Where the answer began: after the end of thinking, or after the forced phrase.
    answer_from: int | None = None
    interrupted: bool = False
    #: The model itself ended the rollout.
    stopped: bool = False

    def after(
        self, control: LengthControl, token_ids: Iterable[int], *, forced: bool = False
    ) -> Progress:
        """The progress once these tokens are appended. Forced tokens come as one whole phrase."""
        tokens = tuple(token_ids)
        if forced:
            n = self.n_tokens + len(tokens)
            return Progress(self.budget, n, (), n, interrupted=True)
        n, tail, answer_from, stopped = self.n_tokens, self.tail, self.answer_from, self.stopped
        end = control.end_think_ids
        ends = end[-1:] if answer_from is None else ()
        if not stopped and not any(t in tokens for t in (*control.stop_ids, *ends)):
            # Nothing can end here: the usual case, asked thousands of times in a step.
            tail = (*tail, *tokens)[1 - len(end) :] if ends and len(end) > 1 else tail
            return Progress(self.budget, n + len(tokens), tail, answer_from, self.interrupted)
        for token in tokens:
            if stopped:
                raise InputError("tokens were added to a rollout after its stop token: drop them")
            n += 1
            stopped = token in control.stop_ids
            if answer_from is None and end:
                tail = (*tail, token)
                if tail[-len(end) :] == end:
                    tail, answer_from = (), n
                else:
                    tail = tail[-len(end) + 1 :] if len(end) > 1 else ()
        return Progress(self.budget, n, tail, answer_from, self.interrupted, stopped)


class LengthControl(Protocol):
    """What an engine needs to know of a length control."""

    @property
    def end_think_ids(self) -> tuple[int, ...]: ...

    @property
    def stop_ids(self) -> tuple[int, ...]: ...

    @property
    def max_tokens(self) -> int: ...

    def start(self, seed: int) -> Progress: ...

    def decide(self, progress: Progress) -> Decision: ...


@dataclass(frozen=True, slots=True)
class Limit:
    """No interruption: a rollout that reaches `max_tokens` is cut off there. The rival that the
    length penalty is used with."""

    max_tokens: int
    stop_ids: tuple[int, ...] = ()
    end_think_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.max_tokens < 0:
            raise InputError(f"max_tokens={self.max_tokens} is no length: give a number from 0")

    def start(self, seed: int) -> Progress:
        """An empty rollout; the seed has no effect."""
        return Progress(self.max_tokens)

    def decide(self, progress: Progress) -> Decision:
        """What to do next."""
        if progress.stopped:
            return Finish("stop")
        room = progress.budget - progress.n_tokens
        return Continue(room) if room > 0 else Finish("length")


@dataclass(frozen=True, slots=True)
class Interruption:
    """Forced interruption after a random thinking budget. All lengths are in tokens."""

    phrase_ids: tuple[int, ...]
    #: The end of thinking, `</think>`, as the tokenizer writes it: one token or several.
    end_think_ids: tuple[int, ...]
    think_min: int
    think_max: int
    answer_tokens: int
    #: Tokens with which the model ends a rollout.
    stop_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.phrase_ids or not self.end_think_ids:
            raise InputError(
                "interruption needs a phrase and an end of thinking of at least one token each: "
                "check that the tokenizer knows them"
            )
        if not 0 <= self.think_min <= self.think_max or self.answer_tokens < 0:
            raise InputError(
                f"budgets think_min={self.think_min}, think_max={self.think_max}, "
                f"answer_tokens={self.answer_tokens} are impossible: "
                "give 0 <= think_min <= think_max and answer_tokens >= 0"
            )

    @property
    def max_tokens(self) -> int:
        """The longest rollout: thinking, an end of thinking begun at the last moment, the phrase
        and the answer. What the context must hold beyond the prompt."""
        slack = len(self.end_think_ids) - 1
        return self.think_max + slack + len(self.phrase_ids) + self.answer_tokens

    def start(self, seed: int) -> Progress:
        """An empty rollout, its thinking budget drawn from its seed."""
        return Progress(thinking_budget(seed, self.think_min, self.think_max))

    def decide(self, progress: Progress) -> Decision:
        """What to do next. Worked through, with a budget of 4 tokens, an end of thinking of two
        tokens (5, 6), a phrase that ends with it, 3 tokens for the answer and 0 as stop token:

        >>> control = Interruption((8, 5, 6), (5, 6), think_min=4, think_max=4, answer_tokens=3,
        ...                        stop_ids=(0,))
        >>> begun = control.start(seed=0)
        >>> control.decide(begun), control.decide(begun.after(control, [1]))
        (Continue(room=4), Continue(room=3))

        The budget is used up: the phrase comes. The answer then begins at token 4 + 3 = 7, and has
        3 tokens; a stop token ends it before.

        >>> thought = begun.after(control, [1, 1, 1, 1])
        >>> control.decide(thought)
        Force(token_ids=(8, 5, 6))
        >>> cut = thought.after(control, (8, 5, 6), forced=True)
        >>> control.decide(cut), control.decide(cut.after(control, [2, 2]))
        (Continue(room=3), Continue(room=1))
        >>> control.decide(cut.after(control, [2, 0])), control.decide(cut.after(control, [2] * 3))
        (Finish(reason='interrupted'), Finish(reason='length'))

        The fourth token is a 5, perhaps the first half of an end of thinking that the budget cuts
        in two: one token more is allowed. If it is a 6, the thought ended by itself and the answer
        begins; if not, the phrase comes one token late.

        >>> half = begun.after(control, [1, 1, 1, 5])
        >>> control.decide(half)
        Continue(room=1)
        >>> control.decide(half.after(control, [6])), control.decide(half.after(control, [1]))
        (Continue(room=3), Force(token_ids=(8, 5, 6)))

        With a budget of 100 the room is not 100: the end of thinking may be there in 2 tokens, and
        then only 3 more are allowed, so that it is asked again after 5.

        >>> long = Interruption((8, 5, 6), (5, 6), think_min=100, think_max=100, answer_tokens=3)
        >>> long.decide(long.start(seed=0))
        Continue(room=5)
        """
        if progress.stopped:
            return Finish("interrupted" if progress.interrupted else "stop")
        if progress.answer_from is not None:
            room = progress.answer_from + self.answer_tokens - progress.n_tokens
            return Continue(room) if room > 0 else Finish("length")
        missing = len(self.end_think_ids) - self._begun(progress.tail)
        room = progress.budget - progress.n_tokens
        if room > 0:
            # The end of thinking may come after `missing` tokens, and then the answer is limited.
            return Continue(min(room, missing + self.answer_tokens))
        # An end of thinking cut in two by the budget may be completed, but never put off: the
        # overrun stays below its length even for one that overlaps itself.
        if missing - room < len(self.end_think_ids):
            return Continue(1)
        return Force(self.phrase_ids)

    def _begun(self, tail: Sequence[int]) -> int:
        """How many tokens of an end of thinking the latest tokens may already be."""
        end = self.end_think_ids
        longest = min(len(tail), len(end) - 1)
        return next((m for m in range(longest, 0, -1) if tuple(tail[-m:]) == end[:m]), 0)


def thinking_budget(seed: int, think_min: int, think_max: int) -> int:
    """Uniform over think_min … think_max, both included; a pure function of the rollout's seed.

    >>> [thinking_budget(seed, 10_240, 12_288) for seed in range(3)]
    [12276, 11683, 12048]
    """
    digest = hashlib.blake2b(f"thinking budget|{seed}".encode(), digest_size=16).digest()
    return think_min + int.from_bytes(digest, "big") % (think_max - think_min + 1)


def length_penalty(n_tokens: int, l_max: int, l_cache: int) -> float:
    """Eq. 9: clip((L_max − |y|) / L_cache − 1, −1, 0): zero up to L_max − L_cache tokens, −1 from
    L_max on. To be added to the reward of correct rollouts only.

    >>> [length_penalty(n, l_max=14_336, l_cache=2_048) for n in (12_288, 13_312, 20_000)]
    [0.0, -0.5, -1.0]
    """
    if l_cache <= 0:
        raise InputError(f"l_cache={l_cache} is no length: give the tokens over which to penalise")
    return min(0.0, max(-1.0, (l_max - n_tokens) / l_cache - 1.0))


def penalised_reward(
    reward: float, correct: bool, n_tokens: int, l_max: int, l_cache: int
) -> float:
    """The reward with the length penalty of Eq. 9, which only a correct rollout pays."""
    return reward + length_penalty(n_tokens, l_max, l_cache) if correct else reward
