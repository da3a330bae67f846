#!/usr/bin/env python3
"""Runs a loop of ten turns between a model and the tools of an MCP server.

    pip install mcp openai
    tests/clients/tools_folder.sh /tmp/tools
    cargo run --release -- serve /tmp/tools --reasoning-parser none --port 8000
    python tests/clients/mcp_client.py [--base-url http://127.0.0.1:8000]

The MCP server is this script again, in a process of its own, over its standard input and output.
Its two tools keep a store. The model gets them as MCP lists them, and each turn demands a call in
another way, so that any model will do whose template shows tools. The last turn asks for text.
"""

import asyncio
import json
import sys
from typing import Annotated, Literal

import openai
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.server import MCPServer
from pydantic import Field

from checks import Root, arguments, check, holds, run

ITEMS = Literal["apples", "pears"]
TURNS = 10


def serve_tools():
    server = MCPServer("store")
    store = {"apples": 0, "pears": 0}

    @server.tool()
    def put(item: ITEMS, count: Annotated[int, Field(ge=1, le=9)]) -> str:
        """Puts fruits into the store."""
        store[item] += count
        return f"{item}: {store[item]}"

    @server.tool()
    def look(item: ITEMS) -> str:
        """Says how many of a fruit there are."""
        return f"{item}: {store[item]}"

    server.run()


def choices():
    """The way in which each turn demands its call."""
    def named(name):
        return {"type": "function", "function": {"name": name}}

    allowed = {"type": "allowed_tools",
               "allowed_tools": {"mode": "required", "tools": [named("put")]}}
    ways = [named("put"), "required", allowed, named("look")]
    return [ways[turn % len(ways)] for turn in range(TURNS - 1)] + ["none"]


def told(result):
    return "\n".join(part.text for part in result.content if part.type == "text")


class Loop:
    def __init__(self, clients, session, tools):
        self.clients, self.session = clients, session
        # As other hosts of MCP tools do: without this a model may add arguments of its own.
        self.schemas = {tool.name: tool.input_schema | {"additionalProperties": False}
                        for tool in tools}
        self.tools = [
            {"type": "function", "function": {
                "name": tool.name, "description": tool.description,
                "parameters": self.schemas[tool.name], "strict": True,
            }} for tool in tools
        ]
        self.messages = [{"role": "user", "content": "Count the fruits."}]
        self.store = dict.fromkeys(["apples", "pears"], 0)
        self.results = []

    def ask(self, choice, turn):
        ask = dict(
            model=self.clients.model, messages=self.messages, tools=self.tools, temperature=0,
            tool_choice=choice, parallel_tool_calls=False, max_tokens=300,
        )
        if turn % 2 == 0:
            return self.clients.openai.chat.completions.create(**ask).choices[0].message
        with self.clients.openai.chat.completions.stream(**ask) as stream:
            for _ in stream:
                pass
            return stream.get_final_completion().choices[0].message

    async def turn(self, choice, turn):
        message = await asyncio.to_thread(self.ask, choice, turn)
        self.messages.append(message.model_dump(exclude_none=True, include={
            "role": True, "content": True,
            "tool_calls": {"__all__": {"id": True, "type": True,
                                       "function": {"name": True, "arguments": True}}},
        }))
        if choice == "none":
            assert not message.tool_calls and message.content, message
            return
        [call] = message.tool_calls
        name, given = call.function.name, json.loads(call.function.arguments)
        holds(self.schemas[name], given, name)
        result = await self.session.call_tool(name, given)
        assert not result.is_error, result
        # The tool really got the model's arguments.
        self.store[given["item"]] += given.get("count", 0)
        assert told(result) == f"{given['item']}: {self.store[given['item']]}", result
        self.results.append(told(result))
        self.messages.append({"role": "tool", "tool_call_id": call.id, "content": told(result)})

    def all_results_are_in_the_prompt(self):
        prompt, at = self.clients.root.prompt(messages=self.messages, tools=self.tools), 0
        for result in self.results:
            found = prompt.find(f"\n{result}<", at)
            assert found >= 0, f"{result!r} is not in {prompt[at:]!r}"
            at = found + 1


class Clients:
    def __init__(self, url, key):
        self.openai = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
        self.root = Root(url, key)
        self.model = self.openai.models.list().data[0].id


async def loop(clients):
    """Returns the calls of a whole loop, and its last text."""
    own = StdioServerParameters(command=sys.executable, args=[__file__, "--serve-tools"])
    async with Client(stdio_client(own)) as session:
        tools = (await session.list_tools()).tools
        assert [tool.name for tool in tools] == ["put", "look"]
        turns = Loop(clients, session, tools)
        for turn, choice in enumerate(choices()):
            await turns.turn(choice, turn)
        assert len(turns.results) == TURNS - 1
        turns.all_results_are_in_the_prompt()
        calls = [(call["function"]["name"], call["function"]["arguments"])
                 for message in turns.messages for call in message.get("tool_calls", [])]
        return calls, turns.messages[-1]["content"]


@check
def ten_turns(clients):
    first, second = asyncio.run(loop(clients)), asyncio.run(loop(clients))
    assert first == second, (first, second)


@check
def loops_at_once(clients):
    async def several():
        return await asyncio.gather(*(loop(clients) for _ in range(3)))

    one, *others = asyncio.run(several())
    assert all(other == one for other in others)


def main():
    given = arguments(__doc__)
    clients = Clients(given.base_url, given.api_key)
    return run(f"openai-python {openai.__version__} and mcp, {clients.model} at {given.base_url}",
               clients)


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve-tools"]:
        serve_tools()
    else:
        sys.exit(main())
