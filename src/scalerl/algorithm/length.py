"""Length control: forced interruption and the length penalty (paper, section 3.8).

Forced interruption. Each rollout gets a thinking budget, uniform in [think_min, think_max]. If the
end of thinking (`</think>`) has not come when the budget is used up, a phrase is appended for the
model ("Okay, time is up. … </think>"): forced tokens, flagged and out of the loss, because the
policy did not sample them. Then `answer_tokens` more may be sampled. If the end of thinking comes
by itself, `answer_tokens` more may be sampled after it. It is found in the text that the tokens
make, whatever tokens they are (`EndOfThought`).

The rules are data: an engine of any kind keeps one `Progress` per rollout and asks what to do.

>>> pieces = [b"", b"x", b"Time! ", b" <", b"/", b">"]
>>> control = Interruption(phrase_ids=(2, 3, 4, 5), end=EndOfThought.of("</>", pieces),
...                        think_min=2, think_max=2, answer_tokens=1, stop_ids=(0,))
>>> progress = control.start(seed=0).after(control, [1, 1])
>>> control.decide(progress)
Force(token_ids=(2, 3, 4, 5))
>>> progress = progress.after(control, [2, 3, 4, 5], forced=True)
>>> control.decide(progress)
Continue(room=1)
>>> control.decide(progress.after(control, [1])), control.decide(progress.after(control, [0]))
(Finish(reason='length'), Finish(reason='interrupted'))
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from scalerl.errors import InputError


@dataclass(frozen=True, slots=True)
class EndOfThought:
    """The closing text, as an automaton over tokens: its state is how many bytes of the text the
    latest tokens end with, and all of them is its end. Only tokens that lead anywhere are kept,
    some hundred of a vocabulary: small enough to travel with every request.

    The token of `> The` closes a thought as well as that of `>`, and a false start does no harm:

    >>> end = EndOfThought.of("</think>", [b" </", b"think", b"> The", b"42 ", b"<", b"/think>"])
    >>> end.read(0, [3, 0, 1]), end.read(7, [2]), end.read(0, [0, 4, 5])
    ((7, 0), (8, 1), (8, 3))
    """

    text: str
    #: From a state, and by a token: the next state. What is not in it leads to 0.
    steps: tuple[dict[int, int], ...]
    #: Tokens that lead from 0 to anywhere.
    starts: frozenset[int]

    @staticmethod
    def of(text: str, pieces: Sequence[bytes]) -> EndOfThought:
        """`pieces` are the bytes that each token of the vocabulary adds to the text."""
        end = text.encode()
        n = len(end)
        if not n:
            raise InputError("the end of thinking is empty: give task.think_close a text")
        beginnings = tuple(end[:k] for k in range(1, n))
        remainders = tuple(end[k:] for k in range(n))
        inside = {end[i:j] for i in range(n) for j in range(i, n + 1)}
        steps: tuple[dict[int, int], ...] = tuple({} for _ in range(n))
        for token, piece in enumerate(pieces):
            # All others neither complete it, nor go on with it, nor begin it: for speed.
            if (
                piece in inside
                or piece.endswith(beginnings)
                or piece.startswith(remainders)
                or end in piece
            ):
                for state in range(n):
                    after = _matched(end, end[:state] + piece)
                    if after:
                        steps[state][token] = after
        return EndOfThought(text, steps, frozenset(steps[0]))

    @property
    def whole(self) -> int:
        """The state at the end of the text."""
        return len(self.steps)

    @property
    def longest_part(self) -> int:
        """The largest state below the whole that any tokens can lead to: 0 where one token is the
        whole text and no other is a part of it."""
        reached, new = {0}, {0}
        while new:
            new = {s for at in new for s in self.steps[at].values() if s < self.whole} - reached
            reached |= new
        return max(reached)

    def read(self, state: int, token_ids: Iterable[int]) -> tuple[int, int]:
        """(state after these tokens, how many of them were read when the text was whole; 0 if it
        is not)."""
        steps, whole, tokens = self.steps, self.whole, tuple(token_ids)
        # Before the first that may begin it nothing happens: most of a thought.
        first = (
            0 if state else min((tokens.index(t) for t in self.starts if t in tokens), default=0)
        )
        for i, token in enumerate(tokens[first:], start=first + 1):
            state = steps[state].get(token, 0)
            if state == whole:
                return whole, i
        return state, 0


def _matched(end: bytes, text: bytes) -> int:
    """All of `end` if it is anywhere in the text, else the most of it that the text ends with."""
    if end in text:
        return len(end)
    return next((k for k in range(len(end) - 1, 0, -1) if text.endswith(end[:k])), 0)


@dataclass(frozen=True, slots=True)
class Continue:
    """Sample on; at most `room` tokens before asking again, so that no limit is overrun. Who looks
    at every token may ask less often: after `quiet` tokens, or at once when one of them is a stop
    token or may begin an end of thinking (`EndOfThought.starts`).

    >>> Continue(room=4).quiet, Continue(room=4, quiet=60).quiet
    (4, 60)
    """

    room: int
    quiet: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "quiet", max(self.room, self.quiet))


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
    #: How much of an end of thinking the latest tokens are: a state of `EndOfThought`.
    begun: int = 0
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
        n = self.n_tokens + len(tokens)
        if forced:
            return Progress(self.budget, n, 0, n, interrupted=True)
        begun, answer_from, stopped = self.begun, self.answer_from, self.stopped
        stops = [tokens.index(t) for t in control.stop_ids if t in tokens]
        if tokens and (stopped or (stops and min(stops) < len(tokens) - 1)):
            raise InputError("tokens were added to a rollout after its stop token: drop them")
        end = control.end
        # Nothing of an end is there: the usual case, asked thousands of times in a step.
        if end and answer_from is None and (begun or not end.starts.isdisjoint(tokens)):
            begun, read = end.read(begun, tokens)
            if read:
                begun, answer_from = 0, self.n_tokens + read
        return Progress(
            self.budget, n, begun, answer_from, self.interrupted, stopped or bool(stops)
        )


class LengthControl(Protocol):
    """What an engine needs to know of a length control."""

    @property
    def end(self) -> EndOfThought | None:
        """What ends a thought; None where it makes no difference."""
        ...

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

    def __post_init__(self) -> None:
        if self.max_tokens < 0:
            raise InputError(f"max_tokens={self.max_tokens} is no length: give a number from 0")

    @property
    def end(self) -> None:
        """A thought may be as long as it likes."""
        return None

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
    end: EndOfThought
    think_min: int
    think_max: int
    answer_tokens: int
    #: Tokens with which the model ends a rollout.
    stop_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.end.read(0, self.phrase_ids)[1]:
            raise InputError(
                f"length.phrase does not close the thought: as the tokenizer writes it, it holds "
                f"no {self.end.text!r}; let it end with task.think_close"
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
        slack = self.end.longest_part
        return self.think_max + slack + len(self.phrase_ids) + self.answer_tokens

    def start(self, seed: int) -> Progress:
        """An empty rollout, its thinking budget drawn from its seed."""
        return Progress(thinking_budget(seed, self.think_min, self.think_max))

    def decide(self, progress: Progress) -> Decision:
        """What to do next. Worked through, with a budget of 4 tokens, an end of thinking that two
        tokens make (5 and 6), a phrase that ends with it, 3 tokens for the answer and 0 as stop
        token:

        >>> end = EndOfThought.of("/>", [b"", b"a", b"b", b"c", b"d", b"/", b">", b"e", b"!"])
        >>> control = Interruption((8, 5, 6), end, think_min=4, think_max=4, answer_tokens=3,
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

        With a budget of 100 the room is not 100: the very next token may end the thought (a token
        may hold all of the text), and then only 3 more are allowed, so that it is asked again
        after 4.

        >>> long = Interruption((8, 5, 6), end, think_min=100, think_max=100, answer_tokens=3)
        >>> long.decide(long.start(seed=0)), long.decide(long.start(seed=0)).quiet
        (Continue(room=4), 100)
        """
        if progress.stopped:
            return Finish("interrupted" if progress.interrupted else "stop")
        if progress.answer_from is not None:
            room = progress.answer_from + self.answer_tokens - progress.n_tokens
            return Continue(room) if room > 0 else Finish("length")
        room = progress.budget - progress.n_tokens
        if room > 0:
            return Continue(min(room, 1 + self.answer_tokens), 0 if progress.begun else room)
        # An end of thinking cut in two by the budget may be completed, but never put off: every
        # token past the budget must bring it at least a byte nearer.
        return Continue(1) if progress.begun > -room else Force(self.phrase_ids)


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
