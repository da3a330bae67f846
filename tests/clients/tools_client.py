#!/usr/bin/env python3
"""Lets a model call a tool, by the clients of OpenAI and of Anthropic, streamed and not.

    pip install openai anthropic
    lockstep serve Qwen/Qwen2.5-1.5B-Instruct --port 8000
    python tests/clients/tools_client.py [--base-url http://127.0.0.1:8000]

It needs a model that calls tools it has not seen; the demo model knows five of its own. The question asks for one call
of `weather`; the model must make it by itself. Calls that are demanded, which any model makes, are the business
of `tests/tests/e2e/held_calls.rs`.
"""

import argparse
import json
import sys

import anthropic
import openai

QUESTION = "What is the weather in Paris? Use the tool."
SCHEMA = {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
}
DESCRIPTION = "Returns the weather in a city."
RESULT = "It is sunny in Paris, 25 degrees."
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def is_the_call(name, arguments):
    assert name == "weather", name
    assert "paris" in arguments["city"].lower(), arguments


@check
def chat(model, oai, _):
    tool = {"type": "function", "function": {
        "name": "weather", "description": DESCRIPTION, "parameters": SCHEMA,
    }}
    messages = [{"role": "user", "content": QUESTION}]
    ask = dict(model=model, messages=messages, tools=[tool], temperature=0)
    message = oai.chat.completions.create(**ask).choices[0].message
    call = message.tool_calls[0]
    is_the_call(call.function.name, json.loads(call.function.arguments))
    with oai.chat.completions.stream(**ask) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.delta" in kinds, kinds
    assert "tool_calls.function.arguments.done" in kinds, kinds
    assert final.finish_reason == "tool_calls", final
    streamed = final.message.tool_calls[0].function
    assert (streamed.name, streamed.arguments) == (call.function.name, call.function.arguments)
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
    oai.chat.completions.create(**ask)


@check
def responses(model, oai, _):
    tool = {"type": "function", "name": "weather", "description": DESCRIPTION,
            "parameters": SCHEMA, "strict": False}
    conversation = [{"role": "user", "content": QUESTION}]
    ask = dict(model=model, input=conversation, tools=[tool], temperature=0)
    answer = oai.responses.create(**ask)
    calls = [item for item in answer.output if item.type == "function_call"]
    is_the_call(calls[0].name, json.loads(calls[0].arguments))
    with oai.responses.stream(**ask) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_response()
    assert "response.function_call_arguments.delta" in kinds, kinds
    assert "response.function_call_arguments.done" in kinds, kinds
    streamed = [item for item in final.output if item.type == "function_call"]
    assert streamed[0].arguments == calls[0].arguments
    conversation += answer.output
    conversation += [{"type": "function_call_output", "call_id": call.call_id, "output": RESULT}
                     for call in calls]
    oai.responses.create(**ask)


@check
def messages(model, _, client):
    tool = {"name": "weather", "description": DESCRIPTION, "input_schema": SCHEMA}
    conversation = [{"role": "user", "content": QUESTION}]
    ask = dict(model=model, messages=conversation, tools=[tool], max_tokens=500,
               extra_body={"temperature": 0})
    answer = client.messages.create(**ask)
    assert answer.stop_reason == "tool_use", answer
    calls = [block for block in answer.content if block.type == "tool_use"]
    is_the_call(calls[0].name, calls[0].input)
    with client.messages.stream(**ask) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_message()
    assert "input_json" in kinds, kinds
    streamed = [block for block in final.content if block.type == "tool_use"]
    assert streamed[0].input == calls[0].input
    counted = client.messages.count_tokens(model=model, messages=conversation, tools=[tool])
    usage = final.usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": RESULT}
               for call in calls]
    conversation += [{"role": "assistant", "content": answer.content},
                     {"role": "user", "content": results}]
    client.messages.create(**ask)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base-url", default="http://127.0.0.1:8000")
    parser.add_argument("--api-key", default="none")
    arguments = parser.parse_args()
    url, key = arguments.base_url, arguments.api_key
    oai = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
    client = anthropic.Anthropic(base_url=url, api_key=key, max_retries=0)
    model = oai.models.list().data[0].id
    print(f"{model} at {url}")
    failed = 0
    for function in CHECKS:
        try:
            function(model, oai, client)
            print(f"ok      {function.__name__}")
        except Exception as error:
            failed += 1
            print(f"FAILED  {function.__name__}: {type(error).__name__}: {error}")
    print(f"{len(CHECKS) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
