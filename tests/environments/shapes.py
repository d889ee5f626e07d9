"""Small environments of every shape, as users write them."""

import random
import sqlite3
import string
import threading

from scalerl.environments.interface import Action, Environment, Observation, Outcome
from scalerl.environments.tools import ToolBox
from scalerl.tasks.task import AnswerScore


class Adder(Environment):
    """Ours: add up with a tool, then say the sum."""

    @classmethod
    def prompts(cls):
        return [{"prompt": f"What is {i} + {i}?", "answer": 2 * i} for i in range(50)]

    def __init__(self, bonus: float = 0.0):
        self.bonus = bonus
        self.tools = ToolBox([self.add])

    def add(self, a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: The first.
            b: The second.
        """
        return a + b

    async def reset(self, prompt, seed):
        self.answer = prompt.answer
        return Observation(tools=self.tools.schemas)

    async def step(self, action: Action):
        if action.tool_calls:
            messages, failed = await self.tools.run(action.tool_calls)
            return Observation(messages, tool_failures=failed)
        right = action.text.strip() == str(self.answer)
        return Outcome(AnswerScore(right, 1.0 + self.bonus if right else -1.0, "compared"))


class Guess:
    """Plain, blocking: higher or lower. It may be used in the thread that made it only."""

    closed = 0

    def reset(self, answer, seed):
        self.memory = sqlite3.connect(":memory:")  # which checks the thread by itself
        self.number = int(answer)
        self.thread = threading.get_ident()
        return f"Guess! (seed {seed})"

    def step(self, text):
        assert threading.get_ident() == self.thread
        self.memory.execute("select 1")
        guess = int(text)
        if guess == self.number:
            return "right", 1.0, True
        return ("higher" if guess < self.number else "lower"), -0.1, False

    def close(self):
        self.memory.close()
        type(self).closed += 1


class AsyncGuess:
    """The same shape, async, with mappings and without reset and close."""

    turns = 0

    async def step(self, text):
        self.turns += 1
        if self.turns == 2:
            return {"done": True, "reward": 0.25, "correct": True}
        return {"observation": [{"role": "tool", "content": text.upper()}], "done": False}


class Gym:
    """Gymnasium's shape."""

    def reset(self, *, seed=None, options=None):
        return f"start {seed}", {}

    def step(self, action):
        return "state", 0.5, action == "stop", False, {}


class IncrementEnv:
    """The shape of TRL's documented example: it draws its own task, and scores itself."""

    def reset(self, **kwargs) -> str | None:
        self.counter, self.target = 0, random.randint(1, 6)
        return f"Count to {self.target}."

    def get_reward(self) -> float:
        return 1.0 if self.counter == self.target else 0.0

    def increment(self, step: int) -> int:
        """Count on.

        Args:
            step: How far to count.

        Returns:
            Where the counter stands.
        """
        self.counter += step
        return self.counter


class Echo:
    """The shape of TRL's oldest example: its tool is named `step`."""

    def reset(self) -> None:
        self.said = ""

    def step(self, message: str) -> str:
        """Repeat a message.

        Args:
            message: What to repeat.
        """
        self.said = message
        return message

    def get_reward(self) -> float:
        return len(self.said) / 10


class Hunt:
    """The shape of TRL's Wordle: a reward function of the script reads `reward`, a game that is
    over raises, and `reset` returns the game's own text. One of the letters hides a prize."""

    def reset(self, **kwargs) -> str | None:
        letters = random.sample(string.ascii_lowercase, 2)
        self.prize = random.choice(letters)
        self.reward, self.done = 0.0, False
        return "".join(letters) + "="

    def lookup(self, key: str) -> str:
        """Look behind a letter.

        Args:
            key: The letter.

        Returns:
            1 for the prize, else 0.
        """
        if self.done:
            raise ValueError("the hunt is over")
        self.done = key == self.prize
        self.reward = float(self.done)
        return "1" if self.done else "0"


class AsyncIncrement:
    """TRL's shape with a dataset, async rewards and tools, and no `**kwargs`."""

    def reset(self, target, prompt) -> None:
        self.counter, self.target = 0, target

    async def increment(self, step: int) -> int:
        """Increment."""
        self.counter += step
        return self.counter

    async def get_reward(self):
        return 1.0 if self.counter == self.target else 0.0


class Sky:
    """skyrl-gym's shape."""

    def __init__(self, env_config, extras):
        self.truth, self.turns = extras["truth"], 0

    def init(self, prompt):
        return [*prompt, {"role": "user", "content": "Think."}], {}

    def step(self, action):
        self.turns += 1
        done = action == self.truth or self.turns == 3
        seen = [] if done else [{"role": "user", "content": "Again."}]
        return {"observations": seen, "reward": float(action == self.truth), "done": done,
                "metadata": {}, "postprocessed_action": "other"}  # fmt: skip

    def close(self):
        pass


class Arena:
    """textarena's shape, without its wrappers."""

    def reset(self, num_players, seed=None):
        self.said = [(-1, f"Guess the number {seed}.", 0)]

    def get_observation(self):
        said, self.said = self.said, []
        return 0, said

    def step(self, action):
        self.said += [(0, action, 1), (-1, "No.", 2)]
        self.won = action == "[7]"
        return self.won, {}

    def close(self):
        return {0: 1.0}, {}


class ArenaWrapper:
    """As textarena wraps games: everything said so far, again and again."""

    def __init__(self, env):
        self.env = env
        self.all = ""

    def __getattr__(self, name):
        return getattr(self.env, name)

    def get_observation(self):
        player, said = self.env.get_observation()
        self.all += "".join(f"\n[{who}] {text}" for who, text, _ in said)
        return player, self.all

    def step(self, action):
        return self.env.step(f"[{action}]")


def wrapped_arena():
    return ArenaWrapper(Arena())


# -- environments that are wrong ------------------------------------------------------------------


class Unmakeable:
    def __init__(self):
        raise OSError("no\nserver")

    def step(self, text): ...


class Nothing:
    pass


class NoHints:
    def reset(self, **row): ...

    def get_reward(self):
        return 1.0

    def look(self, where):
        """Look."""


class NoReward:
    def reset(self, **row): ...

    def look(self, where: str) -> str:
        """Look."""


class NeedsMore:
    def reset(self, elsewhere): ...

    def step(self, text): ...


class Returns:
    """A plain environment that returns what the settings say."""

    def __init__(self, what: str, where: str = "step"):
        values = {"bytes": b"x", "none": None, "number": 3, "text": "x", "list": [b"x"],
                  "role": [{"role": "assistant", "content": "x"}],
                  "content": [{"role": "user", "content": 3}]}  # fmt: skip
        self.where = where
        self.values = values | {"nan": ("x", float("nan"), False), "words": ("x", "much", False)}
        self.what = what

    def reset(self):
        return self.values[self.what] if self.where == "reset" else None

    def step(self, text):
        found = self.values[self.what]
        return found if self.where == "step" or isinstance(found, tuple) else (found, 0.0, False)


class SometimesBytes:
    """Forgets to decode what it reads, in a third of its games."""

    def reset(self, seed):
        self.seed, self.turns = seed, 0
        return "dk="

    def step(self, text):
        self.turns += 1
        return (b"7" if self.seed % 3 == 0 else "7"), float(len(text) % 2), self.turns == 2


class OurReturns(Environment):
    def __init__(self, what: str):
        self.what = what

    async def step(self, action):
        return {
            "bytes": b"x",
            "none": None,
            "messages": Observation(({"role": "user", "content": b"x"},)),
            "score": Outcome(1.0),
            "nan": Outcome(AnswerScore(True, float("nan"), "")),
        }[self.what]


class WrongPrompts(Adder):
    @classmethod
    def prompts(cls):
        return 3


class BoundPrompts(Adder):
    def prompts(self):
        return []
