"""The tools of an MCP server.

class MyEnvironment(Environment):
    async def reset(self, prompt, seed):
        self.server = McpTools("http://127.0.0.1:8000/mcp")
        tools = await self.server.open()
        return Observation(tools=tools.schemas)
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from scalerl.environments.adapters.imports import imported
from scalerl.environments.tools import Tool, ToolBox


class McpTools:
    """A connection to an MCP server: a URL, the parameters of a command, or a server object of the
    same process."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self._ended = asyncio.Event()
        self._session: asyncio.Task[None] | None = None

    async def open(self) -> ToolBox:
        """Connect, and return the server's tools."""
        opened: asyncio.Future[ToolBox] = asyncio.get_running_loop().create_future()
        self._session = asyncio.create_task(self._connected(opened))
        return await opened

    async def close(self) -> None:
        """Close the connection."""
        self._ended.set()
        if self._session is not None:
            await self._session

    async def _connected(self, opened: asyncio.Future[ToolBox]) -> None:
        # A task of its own, because a connection must be closed by the task that opened it, and
        # an environment's `reset` and `close` may be called by different ones.
        try:
            async with imported("mcp", "mcp").Client(self.server) as client:
                listed = await client.list_tools()
                opened.set_result(ToolBox(_tool(client, each) for each in listed.tools))
                await self._ended.wait()
        except Exception as error:
            if opened.done():
                return  # the server went away: calls have said so
            opened.set_exception(error)


def _tool(client: Any, listed: Any) -> Tool:
    facts = {
        "name": listed.name,
        "description": listed.description or "",
        "parameters": listed.input_schema,
    }
    schema = {"type": "function", "function": facts}
    return Tool(listed.name, schema, partial(_call, client, listed.name))


async def _call(client: Any, _tool_name: str, /, **arguments: Any) -> str:
    found = await client.call_tool(_tool_name, arguments)
    text = "\n".join(part.text for part in found.content if getattr(part, "text", None))
    if found.is_error:
        raise RuntimeError(text or "the server says that the call failed")
    return text
