"""Length control: forced interruption and the length penalty (paper, section 3.8).

Forced interruption. Each rollout gets a thinking budget, uniform in [think_min, think_max]. If the
model has not written the end of thinking (`</think>`) when the budget is used up, a phrase is
appended ("Okay, time is up. … </think>"): forced tokens, flagged and out of the loss, because the
policy did not sample them. Then `answer_tokens` more may be sampled. If the model ends its thinking
itself, it may also sample `answer_tokens` more. The end of thinking is searched in the text, since
the same text may be made of different tokens (`EndOfThought`).

A length control is data without state: an engine keeps one `Progress` per rollout, updates it with
new tokens and calls `decide` for the next action.

>>> pieces = [b"", b"x", b"Time! ", b" <", b"/", b">"]
>>> control = Interruption(phrase_ids=(2, 3, 4, 5), end=EndOfThought.from_text("</>", pieces),
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
    """A finite automaton over tokens that finds the text which closes a thought.

    The state is the number of bytes of the text that the latest tokens end with; all of them is
    the accepting state. Only tokens that lead to a state above 0 are stored, about a hundred of a
    vocabulary: small enough to be sent with every request.

    The token `> The` closes a thought as well as the token `>`, and a false start does no harm:

    >>> vocabulary = [b" </", b"think", b"> The", b"42 ", b"<", b"/think>"]
    >>> end = EndOfThought.from_text("</think>", vocabulary)
    >>> end.read(0, [3, 0, 1]), end.read(7, [2]), end.read(0, [0, 4, 5])
    ((7, 0), (8, 1), (8, 3))
    """

    text: str
    #: For each state, the next state by token id. A token that is missing leads to state 0.
    transitions: tuple[dict[int, int], ...]
    #: Token ids that lead from state 0 to another state.
    start_ids: frozenset[int]

    @staticmethod
    def from_text(text: str, pieces: Sequence[bytes]) -> EndOfThought:
        """Build the automaton; `pieces` are the bytes that each token of the vocabulary adds to the
        text."""
        end = text.encode()
        n = len(end)
        if not n:
            raise InputError("the end of thinking is empty: give task.think_close a text")
        beginnings = tuple(end[:k] for k in range(1, n))
        remainders = tuple(end[k:] for k in range(n))
        inside = {end[i:j] for i in range(n) for j in range(i, n + 1)}
        transitions: tuple[dict[int, int], ...] = tuple({} for _ in range(n))
        for token, piece in enumerate(pieces):
            # For speed: of 100,000 tokens, only these can begin, continue or complete the text.
            if (
                piece in inside
                or piece.endswith(beginnings)
                or piece.startswith(remainders)
                or end in piece
            ):
                for state in range(n):
                    after = _matched(end, end[:state] + piece)
                    if after:
                        transitions[state][token] = after
        return EndOfThought(text, transitions, frozenset(transitions[0]))

    @property
    def accepting_state(self) -> int:
        """The state in which the whole text has been read."""
        return len(self.transitions)

    @property
    def longest_partial_match(self) -> int:
        """The largest state below the accepting one that any tokens can lead to: 0 where one token
        is the whole text and no other token is a part of it."""
        reached, new = {0}, {0}
        while new:
            found = {s for state in new for s in self.transitions[state].values()}
            new = found - reached - {self.accepting_state}
            reached |= new
        return max(reached)

    def read(self, state: int, token_ids: Iterable[int]) -> tuple[int, int]:
        """(state after these tokens, number of tokens read when the text was complete; 0 if it is
        not complete)."""
        tokens, accepting = tuple(token_ids), self.accepting_state
        # In state 0 nothing happens before the first token that may begin the text. Most of a
        # thought is skipped this way.
        first = (
            0 if state else min((tokens.index(t) for t in self.start_ids if t in tokens), default=0)
        )
        for i, token in enumerate(tokens[first:], start=first + 1):
            state = self.transitions[state].get(token, 0)
            if state == accepting:
                return accepting, i
        return state, 0


def _matched(end: bytes, text: bytes) -> int:
    """Bytes of `end` matched by the text: all where the text contains `end`, else those of the
    longest beginning of `end` that the text ends with."""
    if end in text:
        return len(end)
    return next((k for k in range(len(end) - 1, 0, -1) if text.endswith(end[:k])), 0)


@dataclass(frozen=True, slots=True)
class Continue:
    """Sample on.

    >>> Continue(room=4).unwatched_budget, Continue(room=4, unwatched_budget=60).unwatched_budget
    (4, 60)
    """

    #: Tokens that may be sampled before `decide` must be called again, so that no limit is overrun.
    room: int
    #: The same for an engine that watches every token: it must call `decide` after this many, or
    #: at once on a stop token or a token that may begin the end of thinking
    #: (`EndOfThought.start_ids`). At least `room`.
    unwatched_budget: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "unwatched_budget", max(self.room, self.unwatched_budget))


@dataclass(frozen=True, slots=True)
class Force:
    """Append these tokens, flagged as forced, then call `decide` again."""

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
    """How far one rollout has got. Positions count generated tokens, forced ones included."""

    #: Thinking tokens before the phrase is forced.
    budget: int
    #: Tokens generated so far.
    n_tokens: int = 0
    #: State of `EndOfThought` after the latest token.
    match_state: int = 0
    #: Position of the answer's first token, after the end of thinking or the forced phrase; None
    #: while the model thinks.
    answer_from: int | None = None
    #: Whether the phrase was forced.
    interrupted: bool = False
    #: Whether the model wrote a stop token.
    stopped: bool = False

    def after(
        self, control: LengthControl, token_ids: Iterable[int], *, forced: bool = False
    ) -> Progress:
        """The progress after these tokens. Forced tokens are passed as one whole phrase."""
        tokens = tuple(token_ids)
        n = self.n_tokens + len(tokens)
        if forced:
            return Progress(self.budget, n, 0, n, interrupted=True)
        state, answer_from, stopped = self.match_state, self.answer_from, self.stopped
        stops = [tokens.index(t) for t in control.stop_ids if t in tokens]
        if tokens and (stopped or (stops and min(stops) < len(tokens) - 1)):
            raise InputError("tokens were added to a rollout after its stop token: drop them")
        end = control.end
        # The set operation settles the usual case, no part of an end, without a Python loop: this
        # runs thousands of times in a step of the engine.
        if end and answer_from is None and (state or not end.start_ids.isdisjoint(tokens)):
            state, read = end.read(state, tokens)
            if read:
                state, answer_from = 0, self.n_tokens + read
        return Progress(
            self.budget, n, state, answer_from, self.interrupted, stopped or bool(stops)
        )


class LengthControl(Protocol):
    """The interface of a length control, as engines use it."""

    @property
    def end(self) -> EndOfThought | None:
        """The text that closes a thought; None where it makes no difference."""
        ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Token ids with which the model ends a rollout."""
        ...

    @property
    def max_tokens(self) -> int:
        """Tokens of the longest rollout, forced ones included."""
        ...

    def start(self, seed: int) -> Progress:
        """The progress of an empty rollout."""
        ...

    def decide(self, progress: Progress) -> Decision:
        """What the engine does next."""
        ...


@dataclass(frozen=True, slots=True)
class Limit:
    """No interruption: a rollout is cut off at `max_tokens`. Goes with the length penalty."""

    max_tokens: int
    stop_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.max_tokens < 0:
            raise InputError(f"max_tokens={self.max_tokens} is no length: give a number from 0")

    @property
    def end(self) -> None:
        """None: a thought has no limit of its own."""
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
        """Tokens of the longest rollout: thinking, an end of thinking begun with the last token of
        the budget, the phrase and the answer. The context must hold them beyond the prompt."""
        slack = self.end.longest_partial_match
        return self.think_max + slack + len(self.phrase_ids) + self.answer_tokens

    def start(self, seed: int) -> Progress:
        """An empty rollout, its thinking budget drawn from its seed."""
        return Progress(thinking_budget(seed, self.think_min, self.think_max))

    def decide(self, progress: Progress) -> Decision:
        """What to do next. Worked through, with a budget of 4 tokens, an end of thinking that two
        tokens make (5 and 6), a phrase that ends with it, 3 tokens for the answer and 0 as stop
        token:

        >>> pieces = [b"", b"a", b"b", b"c", b"d", b"/", b">", b"e", b"!"]
        >>> end = EndOfThought.from_text("/>", pieces)
        >>> control = Interruption((8, 5, 6), end, think_min=4, think_max=4, answer_tokens=3,
        ...                        stop_ids=(0,))
        >>> empty = control.start(seed=0)
        >>> control.decide(empty), control.decide(empty.after(control, [1]))
        (Continue(room=4), Continue(room=3))

        The budget is used up: the phrase comes. The answer then begins at token 4 + 3 = 7, and has
        3 tokens; a stop token ends it before.

        >>> thought = empty.after(control, [1, 1, 1, 1])
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

        >>> half = empty.after(control, [1, 1, 1, 5])
        >>> control.decide(half)
        Continue(room=1)
        >>> control.decide(half.after(control, [6])), control.decide(half.after(control, [1]))
        (Continue(room=3), Force(token_ids=(8, 5, 6)))

        With a budget of 100 the room is not 100: the very next token may end the thought (one token
        may hold all of the text), and then only 3 more are allowed, so `decide` must be called
        again after 4.

        >>> long = Interruption((8, 5, 6), end, think_min=100, think_max=100, answer_tokens=3)
        >>> long.decide(long.start(seed=0)), long.decide(long.start(seed=0)).unwatched_budget
        (Continue(room=4), 100)
        """
        if progress.stopped:
            return Finish("interrupted" if progress.interrupted else "stop")
        if progress.answer_from is not None:
            room = progress.answer_from + self.answer_tokens - progress.n_tokens
            return Continue(room) if room > 0 else Finish("length")
        room = progress.budget - progress.n_tokens
        if room > 0:
            return Continue(min(room, 1 + self.answer_tokens), 0 if progress.match_state else room)
        # An end of thinking that the budget cuts in two may be completed: each token past the
        # budget must match at least one more byte. Without this condition a model could delay the
        # phrase for ever with tokens that keep a partial match alive.
        return Continue(1) if progress.match_state > -room else Force(self.phrase_ids)


def thinking_budget(seed: int, think_min: int, think_max: int) -> int:
    """A thinking budget in tokens, uniform over think_min … think_max (both included), from the
    rollout's seed alone.

    >>> [thinking_budget(seed, 10_240, 12_288) for seed in range(3)]
    [12276, 11683, 12048]
    """
    # A hash and not a generator: equal on every platform and library version. The modulo's bias is
    # below 1e-33, since the digest has 128 bits.
    digest = hashlib.blake2b(f"thinking budget|{seed}".encode(), digest_size=16).digest()
    return think_min + int.from_bytes(digest, "big") % (think_max - think_min + 1)


def length_penalty(n_tokens: int, l_max: int, l_cache: int) -> float:
    """The length penalty of Eq. 9: clip((L_max − |y|) / L_cache − 1, −1, 0). It is 0 up to
    L_max − L_cache tokens and −1 from L_max on; only correct rollouts pay it.

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
