#!/usr/bin/env python3
"""Drives a running server with openai-python.

    pip install openai
    cargo run --release -- serve --port 8000
    python tests/clients/openai_client.py [--base-url http://127.0.0.1:8000/v1]

The checks of AuthenticationError and RateLimitError need servers of their own
and run where these are given:

    cargo run --release -- serve --port 8010 --api-key sk-right
    cargo run --release -- serve --port 8020 --max-running-requests 1 --max-queued-requests 1
    python tests/clients/openai_client.py --key-url http://127.0.0.1:8010/v1 \\
        --busy-url http://127.0.0.1:8020/v1
"""

import argparse
import contextlib
import json
import sys
import urllib.request

import openai
from openai import OpenAI

MODEL = "lockstep-demo-7m"
QUESTION = [{"role": "user", "content": "Count from 3 to 12."}]
ADMIN_KEY = "none"
COUNTED = "3, 4, 5, 6, 7, 8, 9, 10, 11, 12"
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def text(stream, index=0):
    choices = (choice for chunk in stream for choice in chunk.choices)
    return "".join(c.delta.content or "" for c in choices if c.index == index)


def fails(error, call, **details):
    """`call` raises `error`, whose attributes are as in `details`."""
    try:
        call()
    except error as raised:
        for name, value in details.items():
            found = getattr(raised, name)
            assert found == value, f"{name} is {found!r}, not {value!r}"
        return raised
    raise AssertionError(f"{error.__name__} was not raised")


@check
def models(client):
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


@check
def chat(client):
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0)
    assert answer.choices[0].message.content == COUNTED
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"


@check
def chat_usage(client):
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0)
    usage = answer.usage
    assert usage.completion_tokens == 32
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens >= 0


@check
def chat_stream(client):
    stream = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, stream=True
    )
    chunks = list(stream)
    assert text(chunks) == COUNTED
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert all(chunk.usage is None for chunk in chunks)


@check
def chat_stream_usage(client):
    stream = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 32
    assert all(chunk.usage is None for chunk in chunks[:-1])


@check
def chat_stream_helper(client):
    with client.chat.completions.stream(model=MODEL, messages=QUESTION, temperature=0) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content == COUNTED


@check
def abort_by_request_id(client):
    # Every abort comes by a connection of its own, which any front may take.
    for at in range(8):
        name = f"openai-client-{at}"
        stream = client.chat.completions.create(
            model=MODEL, messages=QUESTION, stream=True, max_tokens=1900,
            extra_body={"ignore_eos": True}, extra_headers={"X-Request-Id": name},
        )
        assert stream.response.headers["x-request-id"] == name
        next(iter(stream))
        root = str(client.base_url).removesuffix("/v1/")
        request = urllib.request.Request(
            f"{root}/abort_request", json.dumps({"rid": name}).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {ADMIN_KEY}"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert json.load(answer) == {"aborted": 1}, name
        error = fails(openai.APIError, lambda: list(stream))
        assert error.code == "request_aborted", error


@check
def chat_logprobs(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, logprobs=True, top_logprobs=5
    )
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == answer.usage.completion_tokens
    assert all(len(token.top_logprobs) == 5 for token in tokens)
    assert all(token.top_logprobs[0].logprob == token.logprob for token in tokens)
    whole = b"".join(bytes(token.bytes) for token in tokens).decode()
    assert whole.startswith(COUNTED), whole


@check
def chat_n(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=1.5, n=2, seed=5, max_tokens=20
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    stream = list(client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=1.5, n=2, seed=5, max_tokens=20, stream=True
    ))
    for choice in answer.choices:
        assert text(stream, choice.index) == choice.message.content


@check
def chat_stop(client):
    for stop, expected in (("8", "3, 4, 5, 6, 7, "), (["10", "7, 8"], "3, 4, 5, 6, ")):
        arguments = dict(model=MODEL, messages=QUESTION, temperature=0, stop=stop)
        answer = client.chat.completions.create(**arguments)
        assert answer.choices[0].message.content == expected
        assert answer.choices[0].finish_reason == "stop"
        assert text(client.chat.completions.create(stream=True, **arguments)) == expected


@check
def chat_seed(client):
    def once(seed):
        answer = client.chat.completions.create(
            model=MODEL, messages=QUESTION, temperature=2, seed=seed, max_tokens=24
        )
        return answer.choices[0].message.content

    assert once(1) == once(1)
    assert once(1) != once(2)


@check
def chat_length_and_bias(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, max_completion_tokens=5
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 5
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, max_tokens=8,
        logit_bias={"100": 100}, frequency_penalty=0.5, presence_penalty=0.5, user="somebody",
    )
    assert answer.choices[0].message.content != COUNTED[:8]


@check
def chat_extra_body(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, max_tokens=40,
        extra_body={"ignore_eos": True, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.0},
    )
    assert answer.usage.completion_tokens == 40


@check
def completion(client):
    prompt = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13,"
    answer = client.completions.create(model=MODEL, prompt=prompt, temperature=0, max_tokens=12)
    assert answer.choices[0].text.startswith(" 14, 15"), answer.choices[0].text
    stream = client.completions.create(
        model=MODEL, prompt=prompt, temperature=0, max_tokens=12, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in stream) == answer.choices[0].text


@check
def completion_prompts(client):
    answer = client.completions.create(
        model=MODEL, prompt=["1, 2, 3, 4,", "7 x 1 = 7\n"], temperature=0, max_tokens=4, n=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    tokens = client.completions.create(model=MODEL, prompt=[5, 6, 7], max_tokens=1)
    assert tokens.usage.prompt_tokens == 3


@check
def completion_echo_logprobs(client):
    prompt = "1, 2, 3, 4,"
    answer = client.completions.create(
        model=MODEL, prompt=prompt, temperature=0, max_tokens=1, echo=True, logprobs=1
    )
    choice = answer.choices[0]
    assert choice.text.startswith(prompt)
    logprobs = choice.logprobs
    assert logprobs.token_logprobs[0] is None
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset)
    # The generated token is the greedy one, as evaluation harnesses test it.
    assert logprobs.token_logprobs[-1] == max(logprobs.top_logprobs[-1].values())


@check
def response(client):
    answer = client.responses.create(model=MODEL, input=QUESTION, temperature=0)
    assert answer.output_text == COUNTED, answer
    assert (answer.status, answer.model, answer.error) == ("completed", MODEL, None)
    assert answer.usage.output_tokens == 32
    assert answer.usage.input_tokens_details.cached_tokens >= 0
    assert answer.usage.total_tokens == answer.usage.input_tokens + 32
    text = client.responses.create(
        model=MODEL, input="Count from 3 to 12.", temperature=0, max_output_tokens=5,
        metadata={"a": "b"},
    )
    assert (text.status, text.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert text.metadata == {"a": "b"} and text.max_output_tokens == 5


@check
def response_conversation(client):
    conversation = list(QUESTION)
    first = client.responses.create(model=MODEL, input=conversation, temperature=0)
    conversation += first.output
    conversation += QUESTION
    second = client.responses.create(
        model=MODEL, input=conversation, temperature=0, instructions="Be brief.",
        include=["reasoning.encrypted_content"], store=False,
    )
    assert second.usage.input_tokens > first.usage.input_tokens
    assert second.instructions == "Be brief."


@check
def response_stream(client):
    events = list(client.responses.create(
        model=MODEL, input=QUESTION, temperature=0, stream=True
    ))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events if event.type != "response.output_text.delta"]
    assert kinds == [
        "response.created", "response.in_progress", "response.output_item.added",
        "response.content_part.added", "response.output_text.done", "response.content_part.done",
        "response.output_item.done", "response.completed",
    ], kinds
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == COUNTED
    assert events[-1].response.output_text == COUNTED
    assert {events[0].response.id, events[-1].response.id} == {events[0].response.id}


@check
def response_stream_helper(client):
    with client.responses.stream(model=MODEL, input=QUESTION, temperature=0) as stream:
        texts = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(texts) == COUNTED and final.output_text == COUNTED


@check
def response_errors(client):
    create = client.responses.create
    for arguments, param in (
        ({"input": []}, "input"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"text": {"format": {"type": "structural_tag"}}}, "text.format"),
        ({"temperature": 9}, "temperature"),
    ):
        fails(
            openai.BadRequestError, lambda: create(**{"model": MODEL, "input": "a", **arguments}),
            param=param, type="invalid_request_error",
        )
    fails(openai.NotFoundError, lambda: client.responses.retrieve("resp_1"))


@check
def many_at_once(client):
    from concurrent.futures import ThreadPoolExecutor

    def ask(_):
        answer = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0)
        return answer.choices[0].message.content

    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(ask, range(48))) == {COUNTED}


@check
def leaving_a_stream(client):
    stream = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, stream=True, max_tokens=1500,
        extra_body={"ignore_eos": True},
    )
    with contextlib.closing(stream):
        next(iter(stream))
    chat(client)


@check
def bad_request_errors(client):
    create = client.chat.completions.create
    fails(
        openai.BadRequestError,
        lambda: create(model=MODEL, messages=QUESTION, temperature=9),
        status_code=400, param="temperature", code="decimal_above_max_value",
        type="invalid_request_error",
    )
    fails(
        openai.BadRequestError,
        lambda: create(model=MODEL, messages=[]),
        param="messages", code="empty_array",
    )
    fails(
        openai.BadRequestError,
        lambda: create(model=MODEL, messages=QUESTION, max_tokens=100_000),
        code="context_length_exceeded",
    )
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    other = {"type": "function", "function": {"name": "g"}}
    fails(
        openai.BadRequestError,
        lambda: create(model=MODEL, messages=QUESTION, tools=[tool], tool_choice=other),
        param="tool_choice",
    )
    fails(
        openai.BadRequestError,
        lambda: create(model=MODEL, messages=QUESTION, stream=True, n=0),
        param="n",
    )


@check
def not_found_errors(client):
    fails(
        openai.NotFoundError,
        lambda: client.chat.completions.create(model="gpt-4", messages=QUESTION),
        status_code=404, param="model", code="model_not_found",
    )
    fails(openai.NotFoundError, lambda: client.models.retrieve("gpt-4"), code="model_not_found")
    fails(openai.NotFoundError, lambda: client.embeddings.create(model=MODEL, input="a"))


def authentication(url):
    wrong = OpenAI(base_url=url, api_key="sk-wrong", max_retries=0)
    fails(
        openai.AuthenticationError, lambda: chat(wrong),
        status_code=401, code="invalid_api_key",
    )
    chat(OpenAI(base_url=url, api_key="sk-right", max_retries=0))


def rate_limit(url):
    client = OpenAI(base_url=url, api_key="none", max_retries=0)

    def long():
        return client.chat.completions.create(
            model=MODEL, messages=QUESTION, temperature=0, stream=True, max_tokens=1900,
            extra_body={"ignore_eos": True},
        )

    # The first runs and streams; the others are asked for as raw responses, for
    # a queued one has nothing to stream yet.
    from concurrent.futures import ThreadPoolExecutor

    running = long()
    next(iter(running))
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(long) for _ in range(4)]
        try:
            refused = [one.exception() for one in asked if one.exception(timeout=120)]
        finally:
            running.close()
        for one in asked:
            if not one.exception():
                one.result().close()
    assert len(refused) >= 2, refused
    for error in refused:
        assert isinstance(error, openai.RateLimitError), error
        assert error.code == "rate_limit_exceeded" and error.type == "rate_limit_error"
        assert int(error.response.headers["retry-after"]) >= 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--api-key", default="none")
    parser.add_argument("--admin-key", help="the operators' key [default: --api-key]")
    parser.add_argument("--key-url", help="a server whose key is sk-right")
    parser.add_argument("--busy-url", help="a server that runs one request and queues one")
    arguments = parser.parse_args()
    global ADMIN_KEY
    ADMIN_KEY = arguments.admin_key or arguments.api_key
    client = OpenAI(base_url=arguments.base_url, api_key=arguments.api_key, max_retries=0)
    checks = [(function.__name__, lambda f=function: f(client)) for function in CHECKS]
    if arguments.key_url:
        checks.append(("authentication_error", lambda: authentication(arguments.key_url)))
    if arguments.busy_url:
        checks.append(("rate_limit_error", lambda: rate_limit(arguments.busy_url)))
    failed = 0
    print(f"openai-python {openai.__version__} at {arguments.base_url}")
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
