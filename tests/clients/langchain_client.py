#!/usr/bin/env python3
"""Drives a running server with LangChain.

    pip install langchain-openai
    cargo run --release -- serve --port 8000
    python tests/clients/langchain_client.py [--base-url http://127.0.0.1:8000/v1]
"""

import argparse
import asyncio
import importlib.metadata
import sys

from langchain_openai import ChatOpenAI

MODEL = "lockstep-demo-7m"
QUESTION = "Count from 3 to 12."
COUNTED = "3, 4, 5, 6, 7, 8, 9, 10, 11, 12"
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


@check
def invoke(model):
    answer = model.invoke(QUESTION)
    assert answer.content == COUNTED, answer
    assert answer.usage_metadata["output_tokens"] == 32
    assert answer.response_metadata["finish_reason"] == "stop"


@check
def stream(model):
    chunks = list(model.stream(QUESTION, stream_usage=True))
    assert "".join(chunk.content for chunk in chunks) == COUNTED
    used = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    assert [usage["output_tokens"] for usage in used] == [32]


@check
def batch(model):
    assert [answer.content for answer in model.batch([QUESTION] * 8)] == [COUNTED] * 8


@check
def at_once(model):
    async def ask():
        return await asyncio.gather(*(model.ainvoke(QUESTION) for _ in range(8)))

    assert [answer.content for answer in asyncio.run(ask())] == [COUNTED] * 8


@check
def stop(model):
    assert model.bind(stop=["7, 8"]).invoke(QUESTION).content == "3, 4, 5, 6, "


@check
def logprobs(model):
    answer = model.bind(logprobs=True, top_logprobs=2).invoke(QUESTION)
    tokens = answer.response_metadata["logprobs"]["content"]
    assert len(tokens) == 32 and all(len(token["top_logprobs"]) == 2 for token in tokens)


@check
def tools_are_called(model):
    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    bound = model.bind(max_tokens=200, seed=1).bind_tools([add], tool_choice="required", strict=True)
    [call, *_] = bound.invoke(QUESTION).tool_calls
    assert call["name"] == "add" and {"a", "b"} == set(call["args"]), call


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--api-key", default="none")
    # That of operators; nothing here needs it.
    parser.add_argument("--admin-key")
    arguments = parser.parse_args()
    model = ChatOpenAI(
        base_url=arguments.base_url, api_key=arguments.api_key, model=MODEL, temperature=0,
        max_retries=0,
    )
    failed = 0
    version = importlib.metadata.version("langchain-openai")
    print(f"langchain-openai {version} at {arguments.base_url}")
    for function in CHECKS:
        try:
            function(model)
            print(f"ok      {function.__name__}")
        except Exception as error:
            failed += 1
            print(f"FAILED  {function.__name__}: {type(error).__name__}: {error}")
    print(f"{len(CHECKS) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
