"""The part of the declaration about episodes. Its handlers are in `scalerl.serve.episodes`."""

from __future__ import annotations

from scalerl.serve.api.declare import ApiRoute, Parameter
from scalerl.serve.api.results import RUN_ID
from scalerl.serve.api.schema import (
    Schema,
    array,
    fields_of,
    flag,
    integer,
    mapping,
    number,
    ref,
    text,
)

FACTS = {
    "id": text("id of the episode, in this run"),
    "step": integer("version made by the step that learnt from it, or that answered", "steps"),
    "source": text("`training`, `validation`, or the name of a file of another framework"),
    "set": text('set of a validation; left out for the task itself'),
    "prompt": text("id of the prompt"),
    "task": text("task of the prompt"),
    "reward": number("what it earned; null where it could not be scored", null=True),
    "correct": {"type": ["boolean", "null"],
                "description": "whether it is right; null where it could not be scored"},
    "finish": text("`stop`, `length`, `interrupted`, `turns`, `failed` or `aborted`"),
    "truncated": flag("whether it was cut off by the token limit"),
    "tokens": integer("tokens that were sampled or forced", "tokens"),
    "turns": integer("turns that the policy wrote", "turns"),
    "tool_calls": integer("tool calls"),
    "tool_failed": flag("whether a tool call failed"),
    "why": text("what the check found"),
    "preview": text("the beginning of what was written"),
}  # fmt: skip

_PROBLEMS = array({"type": "string"}, "why something could not be read; left out where nothing")
_COUNTS = {"type": "integer"}
_LENGTH_UNIT = text(
    "what lengths count: characters where the tokens are not recorded",
    enum=["tokens", "characters"],
)


def _numbers(meaning: str, unit: str = "") -> Schema:
    found = array({"type": ["number", "null"]}, meaning, null=True)
    return found | ({"x-unit": unit} if unit else {})


SEGMENT = fields_of("Consecutive tokens of one source.", {
    "source": text("`context`, `policy` (the only ones in the loss) or `forced`",
                   enum=["context", "policy", "forced"]),
    "text": text("text of the tokens, special ones included"),
    "n_tokens": integer("number of tokens", "tokens"),
    "tokens": array({"type": "string"}, "text of each token; null where it is not recorded",
                    null=True),
    "token_ids": array({"type": "integer"}, "the tokens; null where they are not recorded",
                       null=True),
    "logprobs": _numbers("log-prob of each token as it was sampled", "nats"),
    "ratios": _numbers("π_train / π_gen of each token"),
    "entropies": _numbers("entropy of each token", "nats"),
    "versions": array(array({"type": "integer"}), "versions that wrote them: [version, tokens]",
                      null=True),
    "reward": number("reward of the turn that this segment ends", null=True),
})  # fmt: skip

EPISODE = fields_of("An episode with everything that is recorded of it.", {
    **FACTS,
    "question": text("text of the prompt"),
    "turn_rewards": array({"type": ["number", "null"]}, "rewards of its turns"),
    "play": mapping({"type": ["number", "null"]}, "turns, tool calls, failures, forks, seconds"),
    "rows": array(array(ref("Segment")), "what the model saw: rows of segments; every row after "
                                         "the first is a fork"),
    "cut": flag("whether something was left out because the episode is too long"),
    "problems": _PROBLEMS,
}, optional=("set", "problems"))  # fmt: skip

PAGE = fields_of("A page of a list of episodes.", {
    "total": integer("recorded episodes of the run"),
    "matched": integer("those that meet the filter"),
    "complete": flag("whether all were looked at: a search in texts goes on at the next request"),
    "searched": integer("episodes whose text was searched"),
    "to_search": integer("episodes whose text is to be searched"),
    "length_unit": _LENGTH_UNIT,
    "episodes": array(ref("EpisodeFacts"), "the episodes"),
    "next": text("the value of `after` for the next page; null at the end", null=True),
    "problems": _PROBLEMS,
}, optional=("problems",))  # fmt: skip

HISTOGRAM = fields_of("Counts by bins.", {
    "edges": array({"type": "number"}, "edges of the bins: one more than bins"),
    "all": array({"type": "integer"}, "episodes of the run in each bin"),
    "matched": array({"type": "integer"}, "those that meet the filter"),
})  # fmt: skip

HISTOGRAMS = fields_of("How rewards and lengths are spread.", {
    "total": integer("recorded episodes of the run"),
    "matched": integer("those that meet the filter"),
    "complete": flag("whether all were looked at"),
    "length_unit": _LENGTH_UNIT,
    "reward": ref("Histogram"),
    "length": ref("Histogram"),
    "step": ref("Histogram"),
    "by": fields_of("episodes that meet the filter, by kind: value → number", {
        "finish": mapping(_COUNTS, "by finish"),
        "task": mapping(_COUNTS, "by task"),
        "source": mapping(_COUNTS, "by source"),
        "correct": mapping(_COUNTS, "by `true`, `false`, `none`"),
    }),
    "problems": _PROBLEMS,
}, optional=("problems",))  # fmt: skip

COMPONENTS: dict[str, Schema] = {
    "EpisodeFacts": fields_of("An episode, as a list has it.", FACTS, optional=("set",)),
    "Episode": EPISODE,
    "Segment": SEGMENT,
    "EpisodePage": PAGE,
    "Histogram": HISTOGRAM,
    "EpisodeHistograms": HISTOGRAMS,
}

RUN = Parameter("id", RUN_ID, place="path")
FILTERS = (
    Parameter("source", "`training`, `validation`, or the name of a file"),
    Parameter("step_from", "first step", "integer"),
    Parameter("step_to", "last step", "integer"),
    Parameter("task", "task of the prompt"),
    Parameter("prompt", "id of the prompt"),
    Parameter("finish", "finish reason"),
    Parameter("correct", "`true`, `false`, or `none`: could not be scored",
              choices=("true", "false", "none")),
    Parameter("truncated", "whether it was cut off", "boolean"),
    Parameter("tool_failed", "whether a tool call failed", "boolean"),
    Parameter("reward_min", "lowest reward", "number"),
    Parameter("reward_max", "highest reward", "number"),
    Parameter("length_min", "fewest tokens", "integer"),
    Parameter("length_max", "most tokens", "integer"),
    Parameter("text", "text in question, answer or what the check found, in any case of letters"),
    Parameter("regex", "regular expression for the same texts"),
)  # fmt: skip
PAGING = (
    Parameter("sort", "order", choices=("newest", "oldest", "reward", "-reward", "length",
                                        "-length")),
    Parameter("limit", "episodes on a page", "integer", default=50, low=1, high=500),
    Parameter("after", "`next` of the page before"),
)  # fmt: skip

ROUTES = (
    ApiRoute("/runs/{id}/episodes", "episodes", "Recorded episodes that meet a filter",
             ref("EpisodePage"), (RUN, *FILTERS, *PAGING)),
    ApiRoute("/runs/{id}/episodes/histograms", "episode_histograms",
             "Rewards and lengths of all episodes, and of those that meet a filter",
             ref("EpisodeHistograms"), (RUN, *FILTERS)),
    ApiRoute("/runs/{id}/episodes/{episode}", "episode", "One episode with every token",
             ref("Episode"), (RUN, Parameter("episode", "id of the episode", place="path"))),
    ApiRoute("/runs/{id}/prompts/{prompt}/episodes", "prompt_episodes",
             "The episodes of one prompt, the oldest first", ref("EpisodePage"),
             (RUN, Parameter("prompt", "id of the prompt", place="path"),
              *(f for f in FILTERS if f.name != "prompt"), *PAGING)),
)  # fmt: skip
