#!/usr/bin/env python3
"""Looks for the reasoning of a model in the answers of the clients of OpenAI and Anthropic.

    pip install openai anthropic
    tests/clients/tools_folder.sh /tmp/tools
    cargo run --release -- serve /tmp/tools --port 8000
    python tests/clients/reasoning_client.py [--base-url http://127.0.0.1:8000]

It needs a template that opens a thought where `enable_thinking` is true, as Qwen3's does. The demo
model never closes one, so all of its answer is thought; what the answer holds behind the thought
is checked only where there is something.
"""

import sys

import anthropic
import openai

from checks import Root, arguments, check, run

QUESTION = [{"role": "user", "content": "Count from 3 to 12."}]


class Clients:
    def __init__(self, url, key):
        self.openai = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
        self.anthropic = anthropic.Anthropic(base_url=url, api_key=key, max_retries=0)
        self.root = Root(url, key)
        self.model = self.openai.models.list().data[0].id


@check
def chat(clients):
    create = clients.openai.chat.completions.create
    ask = dict(model=clients.model, messages=QUESTION, temperature=0, max_tokens=200)
    for fields in ({"reasoning_effort": "low"},
                   {"extra_body": {"chat_template_kwargs": {"enable_thinking": True}}}):
        answer = create(**ask, **fields)
        thought = answer.choices[0].message.reasoning_content
        assert thought and "<think>" not in thought, answer
        assert answer.usage.completion_tokens_details.reasoning_tokens > 0
        deltas = [chunk.choices[0].delta for chunk in create(**ask, **fields, stream=True)]
        pieces = [getattr(delta, "reasoning_content", None) or "" for delta in deltas]
        assert "".join(pieces) == thought
        text = "".join(delta.content or "" for delta in deltas)
        assert text == (answer.choices[0].message.content or "")
    for fields in ({}, {"reasoning_effort": "none"}):
        answer = create(**ask, **fields).choices[0].message
        assert answer.content and not getattr(answer, "reasoning_content", None), answer


@check
def chat_without_it(clients):
    ask = dict(model=clients.model, messages=QUESTION, temperature=0, max_tokens=200,
               reasoning_effort="low")
    create = clients.openai.chat.completions.create
    thought = create(**ask).choices[0].message.reasoning_content
    left = create(**ask, extra_body={"include_reasoning": False}).choices[0].message
    assert not getattr(left, "reasoning_content", None), left
    joined = create(**ask, extra_body={"separate_reasoning": False}).choices[0].message
    assert thought in joined.content, joined


@check
def response(clients):
    ask = dict(model=clients.model, input=QUESTION, temperature=0, max_output_tokens=200,
               reasoning={"effort": "low"})
    answer = clients.openai.responses.create(**ask)
    assert answer.output[0].type == "reasoning", answer
    thought = "".join(part.text for part in answer.output[0].content)
    assert thought and answer.usage.output_tokens_details.reasoning_tokens > 0
    with clients.openai.responses.stream(**ask) as stream:
        pieces = [event.delta for event in stream
                  if event.type == "response.reasoning_text.delta"]
        final = stream.get_final_response()
    assert "".join(pieces) == thought
    assert final.output[0].content[0].text == thought


@check
def message(clients):
    ask = dict(model=clients.model, messages=QUESTION, max_tokens=1200,
               thinking={"type": "enabled", "budget_tokens": 1024},
               extra_body={"temperature": 0})
    answer = clients.anthropic.messages.create(**ask)
    assert answer.content[0].type == "thinking" and answer.content[0].thinking, answer
    with clients.anthropic.messages.stream(**ask) as stream:
        pieces = [event.thinking for event in stream if event.type == "thinking"]
        final = stream.get_final_message()
    assert "".join(pieces) == answer.content[0].thinking == final.content[0].thinking
    plain = clients.anthropic.messages.create(**ask | {"thinking": {"type": "disabled"}})
    assert [block.type for block in plain.content] == ["text"], plain
    # A thought that is sent back is accepted, signature and all.
    clients.anthropic.messages.create(**ask | {"messages": [
        *QUESTION, {"role": "assistant", "content": [
            *final.content[:1], {"type": "text", "text": "Done."}]},
        *QUESTION,
    ]})


@check
def earlier_thoughts_go_back(clients):
    for name in ("reasoning_content", "reasoning"):
        prompt = clients.root.prompt(messages=[
            *QUESTION, {"role": "assistant", "content": "3, 4", name: "It begins at three."},
            *QUESTION,
        ])
        assert "It begins at three." in prompt, prompt


def main():
    given = arguments(__doc__)
    clients = Clients(given.base_url, given.api_key)
    versions = f"openai-python {openai.__version__}, anthropic {anthropic.__version__}"
    return run(f"{versions}, {clients.model} at {given.base_url}", clients)


if __name__ == "__main__":
    sys.exit(main())
