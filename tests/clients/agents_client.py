#!/usr/bin/env python3
"""Runs LangChain's agents with two tools, by OpenAI's API and by Anthropic's.

    pip install langchain langchain-openai langchain-anthropic
    tests/clients/tools_folder.sh /tmp/tools
    cargo run --release -- serve /tmp/tools --reasoning-parser none --port 8000
    python tests/clients/agents_client.py [--base-url http://127.0.0.1:8000]

A middleware demands a call in the first turns and text in the last, so that any model will do
whose template shows tools.
"""

import importlib.metadata
import sys
from typing import Literal

import openai
from langchain.agents import create_agent
from langchain.agents.middleware import wrap_model_call
from langchain.agents.structured_output import ProviderStrategy
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, ConfigDict, Field

from checks import arguments, check, run

QUESTION = {"messages": [{"role": "user", "content": "Count from 3 to 12."}]}
TURNS = ["put", "any", "look"]


class Closed(BaseModel):
    """Without this a model may add fields of its own, and this one would never end."""

    model_config = ConfigDict(extra="forbid")


class Put(Closed):
    item: Literal["apples", "pears"]
    count: int = Field(ge=1, le=9)


class Look(Closed):
    item: Literal["apples", "pears"]


class Verdict(Closed):
    word: Literal["good", "bad"]
    points: int = Field(ge=0, le=9)


class Models:
    def __init__(self, url, key):
        model = openai.OpenAI(base_url=f"{url}/v1", api_key=key).models.list().data[0].id
        common = dict(model=model, temperature=0, max_tokens=150, max_retries=0)
        self.chat = ChatOpenAI(base_url=f"{url}/v1", api_key=key, **common)
        self.responses = ChatOpenAI(
            base_url=f"{url}/v1", api_key=key, use_responses_api=True, **common
        )
        self.messages = ChatAnthropic(base_url=url, api_key=key, **common)


def tools(given):
    """Two tools that note what they were given; LangChain checks it against their schemas."""

    @tool(args_schema=Put)
    def put(item, count):
        """Puts fruits into the store."""
        given.append(("put", item, count))
        return f"There are {count} {item} more."

    @tool(args_schema=Look)
    def look(item):
        """Says how many of a fruit there are."""
        given.append(("look", item))
        return f"There are some {item}."

    return [put, look]


@wrap_model_call
def demand(request, handler):
    """Demands the calls of TURNS, one after the other, and then text."""
    turn = sum(isinstance(message, ToolMessage) for message in request.messages)
    # LangChain spells `any` and a tool's name for each API, but `none` for OpenAI's alone.
    anthropic = isinstance(request.model, ChatAnthropic)
    text = {"type": "none"} if anthropic else "none"
    choice = TURNS[turn] if turn < len(TURNS) else text
    settings = {"strict": True}
    if turn < len(TURNS):
        settings["parallel_tool_calls"] = False
    return handler(request.override(tool_choice=choice, model_settings=settings))


def agent_runs(model):
    given = []
    agent = create_agent(model, tools(given), middleware=[demand])
    end = agent.invoke(QUESTION)["messages"]
    calls = [call for message in end if isinstance(message, AIMessage)
             for call in message.tool_calls]
    results = [message for message in end if isinstance(message, ToolMessage)]
    assert [call["id"] for call in calls] == [result.tool_call_id for result in results], end
    assert all(result.status == "success" for result in results), results
    assert len(given) == len(calls) == len(TURNS), given
    assert given[0][0] == "put" and given[2][0] == "look", given
    assert isinstance(end[-1], AIMessage) and end[-1].text, end[-1]
    again = []
    agent = create_agent(model, tools(again), middleware=[demand])
    updates = list(agent.stream(QUESTION, stream_mode="messages"))
    assert again == given and updates, (again, given)
    return given


@check
def agent_by_chats(models):
    agent_runs(models.chat)


@check
def agent_by_responses(models):
    agent_runs(models.responses)


@check
def agent_by_messages(models):
    agent_runs(models.messages)


@check
def structured_answers(models):
    assert isinstance(models.chat.with_structured_output(Verdict).invoke("How?"), Verdict)
    by_call = models.chat.with_structured_output(Verdict, method="function_calling")
    assert isinstance(by_call.invoke("How?"), Verdict)
    assert isinstance(models.responses.with_structured_output(Verdict).invoke("How?"), Verdict)
    assert isinstance(models.messages.with_structured_output(Verdict).invoke("How?"), Verdict)


@check
def agent_with_a_structured_answer(models):
    agent = create_agent(models.chat, [], response_format=ProviderStrategy(Verdict))
    end = agent.invoke(QUESTION)
    assert isinstance(end["structured_response"], Verdict), end


@check
def bound_tools(models):
    given = []
    for choice, expected in (("any", None), ("look", "look")):
        answer = models.chat.bind_tools(
            tools(given), tool_choice=choice, parallel_tool_calls=False, strict=True
        ).invoke("Go on.")
        [call] = answer.tool_calls
        assert expected in (None, call["name"]), call
        assert not answer.invalid_tool_calls
    assert given == [], "nothing runs a tool here"


def main():
    given = arguments(__doc__)
    models = Models(given.base_url, given.api_key)
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}"
                         for name in ("langchain", "langchain-openai", "langchain-anthropic"))
    return run(f"{versions} at {given.base_url}", models)


if __name__ == "__main__":
    sys.exit(main())
