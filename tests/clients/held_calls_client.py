#!/usr/bin/env python3
"""Makes a model call tools by every way to demand it, with the clients of OpenAI and Anthropic.

    pip install openai anthropic
    tests/clients/tools_folder.sh /tmp/tools
    cargo run --release -- serve /tmp/tools --reasoning-parser none --port 8000
    python tests/clients/held_calls_client.py [--base-url http://127.0.0.1:8000]

Any model will do whose template shows tools: the grammar makes the calls, not the model's mind.
Each demand is asked for whole and streamed, at temperature 0, and both answers must be equal.
"""

import json
import sys
from typing import Literal

import anthropic
import openai
from pydantic import BaseModel, Field

from checks import arguments, check, holds, run

QUESTION = "Count from 3 to 12."
TOOLS = {
    "look": {
        "type": "object",
        "properties": {
            "place": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "enum": [1, 2]},
        },
        "required": ["place", "days"], "additionalProperties": False,
    },
    "ping": {"type": "object", "properties": {}, "additionalProperties": False},
}
MARKS = ("<tool_call>", "</tool_call>", '"arguments"')


class Look(BaseModel):
    """Looks at the weather of a place."""

    place: str = Field(max_length=8)
    days: Literal[1, 2]


class Clients:
    def __init__(self, url, key):
        self.openai = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
        self.anthropic = anthropic.Anthropic(base_url=url, api_key=key, max_retries=0)
        self.model = self.openai.models.list().data[0].id


def are_calls(calls, names, at_most=None):
    """`calls`, pairs of a name and a value, are of these tools and keep their schemas."""
    assert calls, "there is no call"
    assert at_most is None or len(calls) <= at_most, calls
    for name, value in calls:
        assert name in names, name
        holds(TOOLS[name], value, name)


def is_text(text):
    assert text and not any(mark in text for mark in MARKS), text


# Chats.

def chat_tool(name):
    return {"type": "function", "function": {
        "name": name, "description": f"Tool {name}.", "parameters": TOOLS[name], "strict": True,
    }}


def ask_chat(clients, **fields):
    """Asks whole, by chunks and by the helper of streams. Returns the message of the first."""
    ask = dict(
        model=clients.model, messages=[{"role": "user", "content": QUESTION}], temperature=0,
        max_tokens=300, tools=[chat_tool(name) for name in TOOLS], **fields,
    )
    create = clients.openai.chat.completions.create
    choice = create(**ask).choices[0]
    whole = [(call.function.name, call.function.arguments)
             for call in choice.message.tool_calls or []]
    text, calls, ids, ends = "", [], [], []
    for chunk in create(stream=True, **ask):
        delta = chunk.choices[0].delta
        text += delta.content or ""
        for part in delta.tool_calls or []:
            if part.index == len(calls):
                calls.append([part.function.name, ""])
                ids.append(part.id)
            else:
                assert part.index == len(calls) - 1 and part.id is None, part
            calls[part.index][1] += part.function.arguments or ""
        ends += [chunk.choices[0].finish_reason] if chunk.choices[0].finish_reason else []
    assert ends == [choice.finish_reason], ends
    assert text == (choice.message.content or ""), text
    assert [tuple(call) for call in calls] == whole, calls
    assert len(set(ids)) == len(ids) and all(ids), ids
    with clients.openai.chat.completions.stream(**ask) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion().choices[0].message
    assert [(call.function.name, call.function.arguments)
            for call in final.tool_calls or []] == whole
    assert choice.finish_reason == ("tool_calls" if whole else "stop"), choice
    return choice.message, [(name, json.loads(text)) for name, text in whole]


@check
def chat_none(clients):
    message, calls = ask_chat(clients, tool_choice="none")
    assert not calls
    is_text(message.content)


@check
def chat_auto(clients):
    for fields in ({}, {"tool_choice": "auto"}, {"parallel_tool_calls": False}):
        message, calls = ask_chat(clients, **fields)
        if calls:
            are_calls(calls, TOOLS, 1 if fields.get("parallel_tool_calls") is False else None)
        else:
            is_text(message.content)


@check
def chat_required(clients):
    message, calls = ask_chat(clients, tool_choice="required", parallel_tool_calls=False)
    assert message.content is None
    are_calls(calls, TOOLS, 1)


@check
def chat_named(clients):
    for name in TOOLS:
        choice = {"type": "function", "function": {"name": name}}
        message, calls = ask_chat(clients, tool_choice=choice)
        assert message.content is None
        are_calls(calls, [name], 1)


@check
def chat_allowed_tools(clients):
    for name in TOOLS:
        for mode in ("auto", "required"):
            tool = {"type": "function", "function": {"name": name}}
            choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [tool]}}
            message, calls = ask_chat(clients, tool_choice=choice, parallel_tool_calls=False)
            if mode == "required" or calls:
                are_calls(calls, [name], 1)
            else:
                is_text(message.content)


@check
def chat_parse_tools(clients):
    answer = clients.openai.chat.completions.parse(
        model=clients.model, messages=[{"role": "user", "content": QUESTION}], temperature=0,
        max_tokens=200, tools=[openai.pydantic_function_tool(Look)], parallel_tool_calls=False,
        tool_choice={"type": "function", "function": {"name": "Look"}},
    )
    [call] = answer.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Look), call


@check
def chat_results_go_back(clients):
    choice = {"type": "function", "function": {"name": "look"}}
    message, _ = ask_chat(clients, tool_choice=choice)
    [call] = message.tool_calls
    answer = clients.openai.chat.completions.create(
        model=clients.model, temperature=0, max_tokens=60, tool_choice="none",
        tools=[chat_tool(name) for name in TOOLS], messages=[
            {"role": "user", "content": QUESTION}, message,
            {"role": "tool", "tool_call_id": call.id, "content": "It is sunny."},
        ],
    )
    is_text(answer.choices[0].message.content)


# Responses.

def ask_response(clients, **fields):
    """Asks whole and streamed, and returns the response and its calls."""
    tools = [{"type": "function", "name": name, "description": f"Tool {name}.",
              "parameters": schema, "strict": True} for name, schema in TOOLS.items()]
    ask = dict(model=clients.model, input=QUESTION, temperature=0, max_output_tokens=300,
               tools=tools, **fields)
    whole = clients.openai.responses.create(**ask)
    assert whole.status == "completed", whole
    pieces, done = {}, []
    with clients.openai.responses.stream(**ask) as stream:
        for event in stream:
            if event.type == "response.function_call_arguments.delta":
                pieces[event.item_id] = pieces.get(event.item_id, "") + event.delta
            elif event.type == "response.function_call_arguments.done":
                done.append((event.item_id, event.arguments))
        final = stream.get_final_response()

    def calls(response):
        return [(item.name, item.arguments) for item in response.output
                if item.type == "function_call"]

    assert calls(final) == calls(whole) and final.output_text == whole.output_text
    assert list(pieces.items()) == done, (pieces, done)
    assert [text for _, text in done] == [text for _, text in calls(whole)]
    return whole, [(name, json.loads(text)) for name, text in calls(whole)]


@check
def response_choices(clients):
    response, calls = ask_response(clients, tool_choice="none")
    assert not calls
    is_text(response.output_text)
    response, calls = ask_response(clients, tool_choice="auto")
    if calls:
        are_calls(calls, TOOLS)
    else:
        is_text(response.output_text)
    _, calls = ask_response(clients, tool_choice="required", parallel_tool_calls=False)
    are_calls(calls, TOOLS, 1)
    for name in TOOLS:
        tool = {"type": "function", "name": name}
        _, calls = ask_response(clients, tool_choice=tool)
        are_calls(calls, [name], 1)
        choice = {"type": "allowed_tools", "mode": "required", "tools": [tool]}
        _, calls = ask_response(clients, tool_choice=choice, parallel_tool_calls=False)
        are_calls(calls, [name], 1)


@check
def response_results_go_back(clients):
    response, _ = ask_response(clients, tool_choice={"type": "function", "name": "look"})
    [call] = [item for item in response.output if item.type == "function_call"]
    answer = clients.openai.responses.create(
        model=clients.model, temperature=0, max_output_tokens=60, input=[
            {"role": "user", "content": QUESTION}, *response.output,
            {"type": "function_call_output", "call_id": call.call_id, "output": "It is sunny."},
        ],
    )
    assert answer.output_text


# Messages.

def ask_message(clients, **choice):
    """Asks whole and streamed, and returns the message and its calls."""
    tools = [{"name": name, "description": f"Tool {name}.", "input_schema": schema,
              "strict": True} for name, schema in TOOLS.items()]
    ask = dict(model=clients.model, messages=[{"role": "user", "content": QUESTION}],
               tools=tools, **({"tool_choice": choice} if choice else {}))
    counted = clients.anthropic.messages.count_tokens(**ask).input_tokens
    ask |= dict(max_tokens=300, extra_body={"temperature": 0})
    whole = clients.anthropic.messages.create(**ask)
    with clients.anthropic.messages.stream(**ask) as stream:
        for _ in stream:
            pass
        final = stream.get_final_message()

    def parts(message):
        return [(block.type, block.name, block.input) if block.type == "tool_use"
                else (block.type, block.text) for block in message.content]

    assert parts(final) == parts(whole), (final, whole)
    usage = whole.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == counted, usage
    calls = [(block.name, block.input) for block in whole.content if block.type == "tool_use"]
    assert whole.stop_reason == ("tool_use" if calls else "end_turn"), whole
    return whole, calls


@check
def message_choices(clients):
    message, calls = ask_message(clients, type="none")
    assert not calls
    is_text(message.content[0].text)
    for choice in ({}, {"type": "auto"}, {"type": "auto", "disable_parallel_tool_use": True}):
        message, calls = ask_message(clients, **choice)
        if calls:
            are_calls(calls, TOOLS, 1 if choice.get("disable_parallel_tool_use") else None)
        else:
            is_text(message.content[0].text)
    _, calls = ask_message(clients, type="any", disable_parallel_tool_use=True)
    are_calls(calls, TOOLS, 1)
    for name in TOOLS:
        message, calls = ask_message(clients, type="tool", name=name)
        are_calls(calls, [name], 1)
        assert len(message.content) == 1, message


@check
def message_results_go_back(clients):
    message, _ = ask_message(clients, type="tool", name="look")
    [call] = message.content
    answer = clients.anthropic.messages.create(
        model=clients.model, max_tokens=60, extra_body={"temperature": 0}, messages=[
            {"role": "user", "content": QUESTION},
            {"role": "assistant", "content": message.content},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": call.id, "content": "It is sunny."},
            ]},
        ],
    )
    assert answer.content[0].text


def main():
    given = arguments(__doc__)
    clients = Clients(given.base_url, given.api_key)
    versions = f"openai-python {openai.__version__}, anthropic {anthropic.__version__}"
    return run(f"{versions}, {clients.model} at {given.base_url}", clients)


if __name__ == "__main__":
    sys.exit(main())
