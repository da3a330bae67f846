#!/usr/bin/env python3
"""Drives a running server with anthropic's Python client.

    pip install anthropic
    cargo run --release -- serve --port 8000
    python tests/clients/anthropic_client.py [--base-url http://127.0.0.1:8000]

The checks of AuthenticationError need a server of their own and run where it is given:

    cargo run --release -- serve --port 8010 --api-key sk-right
    python tests/clients/anthropic_client.py --key-url http://127.0.0.1:8010
"""

import argparse
import contextlib
import json
import sys
import urllib.request

import anthropic
from anthropic import Anthropic

MODEL = "lockstep-demo-7m"
QUESTION = [{"role": "user", "content": "Count from 3 to 12."}]
ADMIN_KEY = "none"
COUNTED = "3, 4, 5, 6, 7, 8, 9, 10, 11, 12"
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def ask(client, **arguments):
    """A greedy message. The client has no argument for the temperature."""
    body = {"temperature": 0, **arguments.pop("extra_body", {})}
    arguments = {"model": MODEL, "messages": QUESTION, "max_tokens": 60, **arguments}
    return client.messages.create(extra_body=body, **arguments)


def fails(error, call, **details):
    """`call` raises `error`, whose body's error is as in `details`."""
    try:
        call()
    except error as raised:
        assert raised.body["type"] == "error", raised.body
        assert raised.request_id == raised.body["request_id"], raised.body
        for name, value in details.items():
            found = raised.body["error"][name]
            assert found == value, f"{name} is {found!r}, not {value!r}"
        return raised
    raise AssertionError(f"{error.__name__} was not raised")


@check
def message(client):
    answer = ask(client)
    assert [block.type for block in answer.content] == ["text"], answer
    assert answer.content[0].text == COUNTED, answer
    assert (answer.role, answer.type, answer.model) == ("assistant", "message", MODEL)
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    assert answer.id.startswith("msg_") and answer._request_id


@check
def usage_and_count_tokens(client):
    for system in (anthropic.NOT_GIVEN, "Be brief.", [{"type": "text", "text": "Be brief."}]):
        counted = client.messages.count_tokens(model=MODEL, messages=QUESTION, system=system)
        usage = ask(client, system=system).usage
        assert usage.input_tokens + usage.cache_read_input_tokens == counted.input_tokens, usage
        assert usage.output_tokens > 0


@check
def message_stream(client):
    events = list(ask(client, stream=True))
    assert [event.type for event in events[:2]] == ["message_start", "content_block_start"]
    assert [event.type for event in events[-3:]] == [
        "content_block_stop", "message_delta", "message_stop"
    ]
    deltas = [event for event in events if event.type == "content_block_delta"]
    assert "".join(event.delta.text for event in deltas) == COUNTED
    assert events[-2].delta.stop_reason == "end_turn"
    assert events[-2].usage.output_tokens == ask(client).usage.output_tokens


@check
def stream_helper(client):
    with client.messages.stream(
        model=MODEL, messages=QUESTION, max_tokens=60, extra_body={"temperature": 0}
    ) as stream:
        assert "".join(stream.text_stream) == COUNTED
        final = stream.get_final_message()
    assert final.content[0].text == COUNTED
    counted = client.messages.count_tokens(model=MODEL, messages=QUESTION).input_tokens
    assert final.usage.input_tokens + final.usage.cache_read_input_tokens == counted
    assert final.stop_reason == "end_turn"


@check
def ends(client):
    cut = ask(client, max_tokens=5)
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 5)
    stopped = ask(client, stop_sequences=["8"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "8")
    assert stopped.content[0].text == "3, 4, 5, 6, 7, "
    full = ask(client, max_tokens=20_000, extra_body={"ignore_eos": True})
    assert full.stop_reason == "model_context_window_exceeded", full.stop_reason


@check
def prefill(client):
    begun = QUESTION + [{"role": "assistant", "content": "3, 4,"}]
    answer = ask(client, messages=begun)
    assert "3, 4," + answer.content[0].text == COUNTED, answer


@check
def blocks_and_ignored_fields(client):
    text = {"type": "text", "text": QUESTION[0]["content"], "cache_control": {"type": "ephemeral"}}
    answer = ask(
        client, messages=[{"role": "user", "content": [text]}], metadata={"user_id": "somebody"},
        service_tier="auto", thinking={"type": "disabled"},
    )
    assert answer.content[0].text == COUNTED


@check
def models_by_its_key(client):
    assert [model.id for model in client.models.list()] == [MODEL]


@check
def many_at_once(client):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(16) as pool:
        texts = pool.map(lambda _: ask(client).content[0].text, range(48))
        assert set(texts) == {COUNTED}


@check
def leaving_a_stream(client):
    stream = ask(client, stream=True, max_tokens=1500, extra_body={"ignore_eos": True})
    with contextlib.closing(stream):
        next(iter(stream))
    message(client)


@check
def abort_by_message_id(client):
    stream = ask(client, stream=True, max_tokens=1900, extra_body={"ignore_eos": True})
    begun = next(iter(stream))
    root = str(client.base_url).rstrip("/")
    request = urllib.request.Request(
        f"{root}/abort_request", json.dumps({"rid": begun.message.id}).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {ADMIN_KEY}"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert json.load(answer) == {"aborted": 1}
    try:
        list(stream)
    except anthropic.APIStatusError as error:
        assert "aborted" in error.message, error
        return
    raise AssertionError("the stream has no error")


@check
def bad_request_errors(client):
    bad = "invalid_request_error"
    fails(anthropic.BadRequestError, lambda: ask(client, messages=[]), type=bad)
    fails(anthropic.BadRequestError, lambda: ask(client, max_tokens=0), type=bad)
    fails(anthropic.BadRequestError, lambda: ask(client, messages=[
        {"role": "user", "content": "word " * 20_000}
    ]), type=bad)
    image = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
    raised = fails(anthropic.BadRequestError, lambda: ask(client, messages=[
        {"role": "user", "content": [image]}
    ]))
    assert "'image'" in raised.body["error"]["message"], raised
    tool = {"name": "f", "input_schema": {"type": "object"}}
    choice = {"type": "tool", "name": "g"}
    raised = fails(
        anthropic.BadRequestError, lambda: ask(client, tools=[tool], tool_choice=choice))
    assert "'g'" in raised.body["error"]["message"], raised
    # An error status, not an error within a stream.
    fails(anthropic.BadRequestError, lambda: ask(client, messages=[], stream=True), type=bad)


@check
def not_found_errors(client):
    fails(anthropic.NotFoundError, lambda: ask(client, model="claude"), type="not_found_error")
    fails(anthropic.NotFoundError, lambda: client.messages.batches.retrieve("a"))


def authentication(url):
    for wrong in (Anthropic(base_url=url, api_key="sk-wrong", max_retries=0),
                  Anthropic(base_url=url, auth_token="sk-wrong", api_key=None, max_retries=0)):
        fails(anthropic.AuthenticationError, lambda: message(wrong), type="authentication_error")
    message(Anthropic(base_url=url, api_key="sk-right", max_retries=0))
    message(Anthropic(base_url=url, auth_token="sk-right", api_key=None, max_retries=0))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base-url", default="http://127.0.0.1:8000")
    parser.add_argument("--api-key", default="none")
    parser.add_argument("--admin-key", help="the operators' key [default: --api-key]")
    parser.add_argument("--key-url", help="a server whose key is sk-right")
    arguments = parser.parse_args()
    global ADMIN_KEY
    ADMIN_KEY = arguments.admin_key or arguments.api_key
    client = Anthropic(base_url=arguments.base_url, api_key=arguments.api_key, max_retries=0)
    checks = [(function.__name__, lambda f=function: f(client)) for function in CHECKS]
    if arguments.key_url:
        checks.append(("authentication_error", lambda: authentication(arguments.key_url)))
    failed = 0
    print(f"anthropic {anthropic.__version__} at {arguments.base_url}")
    for name, run in checks:
        try:
            run()
            print(f"ok      {name}")
        except Exception as error:
            failed += 1
            print(f"FAILED  {name}: {type(error).__name__}: {error}")
    print(f"{len(checks) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
