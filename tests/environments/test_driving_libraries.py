"""Libraries that drive the model, with their own agents: each test needs its library."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from test_endpoint import play, said

from scalerl.environments.adapters.inspect_ai import inspect_model
from scalerl.environments.adapters.smolagents import smolagents_model
from scalerl.environments.driven import DrivenEnvironment
from scalerl.environments.interface import Action, ToolCall


def calling(text, name, **arguments):
    return Action(text, (ToolCall(name, arguments),), token_ids=(1, 2, 3))


def played(rollout, *actions):
    async def episode():
        environment = DrivenEnvironment(rollout)
        try:
            return await play(environment, actions)
        finally:
            await environment.close()
            assert asyncio.all_tasks() == {asyncio.current_task()}

    return asyncio.run(episode())


def test_a_code_agent_of_smolagents():
    smolagents = pytest.importorskip("smolagents")

    def rollout(prompt, client):
        agent = smolagents.CodeAgent(tools=[], model=smolagents_model(client), verbosity_level=0)
        return float(agent.run(prompt.question) == prompt.answer)

    code = "Thought: add.\n<code>\nprint(3 + 4)\n</code>", "<code>\nfinal_answer(7)\n</code>"
    first, second, last = played(rollout, *map(Action, code))
    assert said(first.conversation)[1] == ("user", "New task:\nWhat is 3 + 4?")
    assert "Observation:\nExecution logs:\n7" in said(second.conversation)[-1][1]
    assert last.score.reward == 1.0


def test_a_tool_calling_agent_of_smolagents():
    smolagents = pytest.importorskip("smolagents")

    @smolagents.tool
    def add(a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: The first.
            b: The second.
        """
        return a + b

    def rollout(prompt, client):
        model = smolagents_model(client)
        agent = smolagents.ToolCallingAgent(tools=[add], model=model, verbosity_level=0)
        return float(agent.run(prompt.question) == prompt.answer)

    first, second, last = played(
        rollout, calling("x", "add", a=3, b=4), calling("y", "final_answer", answer=7)
    )
    assert [tool["function"]["name"] for tool in first.tools] == ["add", "final_answer"]
    assert said(second.conversation)[-1] == ("user", "Observation:\n7")
    assert last.score.reward == 1.0


def inspect_add():
    """A tool of inspect-ai."""
    tools = pytest.importorskip("inspect_ai.tool")

    @tools.tool
    def add():
        async def execute(a: int, b: int) -> int:
            """Add two numbers.

            Args:
                a: The first.
                b: The second.
            """
            return a + b

        return execute

    return add()


def test_a_loop_of_inspect_ai_keeps_the_history():
    add = inspect_add()

    async def rollout(prompt, client):
        _, output = await inspect_model(client).generate_loop(prompt.question, tools=[add])
        return float(output.completion == str(prompt.answer))

    first, second, last = played(rollout, calling(" x\n", "add", a=3, b=4), Action("7"))
    assert [tool["function"]["name"] for tool in first.tools] == ["add"]
    assert second.messages == ({"role": "tool", "name": "add", "content": "7"},)
    assert second.conversation is None
    assert last.score.reward == 1.0


def test_an_evaluation_of_inspect_ai(tmp_path):
    add = inspect_add()
    import inspect_ai
    from inspect_ai.agent import react
    from inspect_ai.dataset import Sample
    from inspect_ai.scorer import match

    async def rollout(prompt, client):
        row = Sample(input=prompt.question, target=str(prompt.answer))
        task = inspect_ai.Task([row], solver=react(tools=[add]), scorer=match())
        model = inspect_model(client)
        [log] = await inspect_ai.eval_async(task, model=model, log_dir=str(tmp_path))
        return log.results.scores[0].metrics["accuracy"].value

    _, second, third, last = played(
        rollout,
        calling("x", "add", a=3, b=4),
        Action("hm"),
        calling("y", "submit", answer="7"),
    )
    assert second.messages == ({"role": "tool", "name": "add", "content": "7"},)
    assert [role for role, _ in said(third.messages)] == ["user"]  # it asks to go on
    assert last.score.reward == 1.0


def test_clients_of_openai_async_and_not():
    openai = pytest.importorskip("openai")

    def rollout(prompt, client):
        with openai.OpenAI(base_url=client.base_url, api_key=client.api_key) as model:
            messages = [{"role": "user", "content": prompt.question}]
            chat = model.chat.completions
            first = chat.create(model=client.model, messages=messages).choices[0].message
            messages += [first, {"role": "user", "content": "and?"}]
            parts = chat.create(
                model=client.model,
                messages=messages,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"return_token_ids": True},
            )
            *_, before, last = [*parts]
            assert before.choices[0].finish_reason == "stop"  # no tools
            return float(last.usage.completion_tokens)

    _, second, last = played(rollout, Action("hm"), calling("7", "f"))
    assert said(second.messages) == [("user", "and?")]
    assert last.score.reward == 3.0


def test_the_example(monkeypatch):
    pytest.importorskip("openai")
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    import calculator_agent

    _, second, third, last = played(
        calculator_agent.rollout,
        calling("x", "multiply", a="?"),
        calling("x", "multiply", a=7, b=1),
        Action(" 7\n"),
    )
    assert said(second.messages)[0][1].startswith("error: ValueError")
    assert said(third.messages) == [("tool", "7")]
    assert last.score.reward == 1.0


def test_a_client_of_openai_reads_the_error():
    openai = pytest.importorskip("openai")

    async def rollout(prompt, client):
        async with openai.AsyncOpenAI(base_url=client.base_url, api_key=client.api_key) as model:
            with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-4' here"):
                await model.chat.completions.create(
                    model="gpt-4", messages=[{"role": "user", "content": "?"}]
                )
            await client.chat([{"role": "user", "content": prompt.question}])
        return 1.0

    assert played(rollout, Action("hm"))[-1].score.reward == 1.0


def test_a_program_of_verifiers():
    vf = pytest.importorskip("verifiers.v1")
    if shutil.which("uv") is None:
        pytest.skip("verifiers starts programs by uv")
    from verifiers.v1.clients import EvalClientConfig
    from verifiers.v1.runtimes import SubprocessConfig
    from verifiers.v1.task import TaskData
    from verifiers.v1.utils.decorators import reward

    class Sum(vf.Task[TaskData]):
        @reward
        async def right(self, trace) -> float:
            return float(trace.last_reply.strip() == "7")

    async def rollout(prompt, client):
        # verifiers reads keys from variables of the process: one for each episode.
        variable = f"KEY_{client.api_key[3:]}"
        os.environ[variable] = client.api_key
        endpoint = EvalClientConfig(base_url=client.base_url, api_key_var=variable)
        config = vf.AgentConfig(
            harness={"id": "null"}, runtime=SubprocessConfig(), model=client.model, client=endpoint
        )
        try:
            trace = await vf.make_agent(config).run(Sum(TaskData(prompt=prompt.question)))
        finally:
            del os.environ[variable]
        return trace.reward

    first, last = played(rollout, Action("7"))
    assert said(first.conversation) == [("user", "What is 3 + 4?")]
    assert last.score.reward == 1.0

    async def cut_off():
        environment = DrivenEnvironment(rollout)
        await play(environment, ())
        await environment.cut_off()
        await environment.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(cut_off())
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)  # there is no child left
