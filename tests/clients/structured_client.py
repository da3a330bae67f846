#!/usr/bin/env python3
"""Asks for answers in a schema by every call that the clients of OpenAI and Anthropic have for it.

    pip install openai anthropic
    cargo run --release -- serve --port 8000
    python tests/clients/structured_client.py [--base-url http://127.0.0.1:8000]

The schemas are pydantic's, and the clients themselves judge the answers.
"""

import json
import re
import sys
from typing import Literal

import anthropic
import openai
from pydantic import BaseModel, Field

from checks import Root, arguments, check, run

QUESTION = [{"role": "user", "content": "Count from 3 to 12."}]
GREEDY = {"temperature": 0}


class Person(BaseModel):
    """Somebody, with a reference inside and a list."""

    class Home(BaseModel):
        town: str = Field(max_length=8)
        floor: int = Field(ge=0, le=9)

    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=130)
    homes: list[Home] = Field(min_length=1, max_length=2)
    mood: Literal["glad", "sad"] | None


class Verdict(BaseModel):
    """What is left of a schema when anthropic's client has turned its limits into prose."""

    word: Literal["good", "bad"]
    sure: bool


class Clients:
    def __init__(self, url, key):
        self.openai = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
        self.anthropic = anthropic.Anthropic(base_url=url, api_key=key, max_retries=0)
        self.root = Root(url, key)
        self.model = self.openai.models.list().data[0].id


@check
def chat_parse(clients):
    ask = dict(model=clients.model, messages=QUESTION, max_tokens=300, response_format=Person)
    whole = clients.openai.chat.completions.parse(**ask, temperature=0).choices[0]
    assert isinstance(whole.message.parsed, Person), whole
    assert whole.finish_reason == "stop"
    with clients.openai.chat.completions.stream(**ask, temperature=0) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion().choices[0].message
    assert {"content.delta", "content.done"} <= kinds, kinds
    assert final.parsed == whole.message.parsed
    for seed in range(4):
        answer = clients.openai.chat.completions.parse(**ask, temperature=1.5, seed=seed, n=2)
        assert all(isinstance(choice.message.parsed, Person) for choice in answer.choices)


@check
def chat_parse_that_is_cut(clients):
    try:
        clients.openai.chat.completions.parse(
            model=clients.model, messages=QUESTION, max_tokens=5, response_format=Person,
            temperature=0,
        )
    except openai.LengthFinishReasonError:
        return
    raise AssertionError("the client was not told that the answer is cut")


@check
def chat_json_object(clients):
    answer = clients.openai.chat.completions.create(
        model=clients.model, messages=QUESTION, max_tokens=200, temperature=0,
        response_format={"type": "json_object"},
    ).choices[0]
    assert answer.message.content.startswith("{")
    if answer.finish_reason == "stop":
        assert isinstance(json.loads(answer.message.content), dict)


@check
def response_parse(clients):
    ask = dict(model=clients.model, input=QUESTION, temperature=0, text_format=Person)
    whole = clients.openai.responses.parse(**ask, max_output_tokens=300)
    assert isinstance(whole.output_parsed, Person), whole
    with clients.openai.responses.stream(**ask) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert final.output_parsed == whole.output_parsed


@check
def message_parse(clients):
    ask = dict(model=clients.model, messages=QUESTION, max_tokens=300, extra_body=GREEDY)
    whole = clients.anthropic.messages.parse(**ask, output_format=Verdict)
    assert isinstance(whole.parsed_output, Verdict), whole
    with clients.anthropic.messages.stream(**ask, output_format=Verdict) as stream:
        for _ in stream:
            pass
        final = stream.get_final_message()
    assert final.content[0].text == whole.content[0].text
    schema = anthropic.transform_schema(Verdict)
    answer = clients.anthropic.messages.create(
        **ask, output_config={"format": {"type": "json_schema", "schema": schema}}
    )
    assert Verdict.model_validate_json(answer.content[0].text)


@check
def spellings_of_other_servers(clients):
    """The names of vLLM, SGLang and llama.cpp, in OpenAI's extra body, by both of its routes."""
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9,
              "minimum": 0}}, "required": ["n"], "additionalProperties": False}
    word, digits, record = "(yes|no)", "[0-9]{4}", r'\{\s*"n"\s*:\s*[0-9]\s*\}'
    gbnf = 'root ::= answer\nanswer ::= "yes" | "no"'
    tag = {"type": "structural_tag", "format": {
        "type": "tags_with_separator", "separator": ",", "at_least_one": True,
        "stop_after_first": True, "tags": [{
            "begin": "<n>", "content": {"type": "json_schema", "json_schema": schema},
            "end": "</n>"}]}}
    tagged = f"<n>{record}</n>"
    for fields, expected in (
        ({"structured_outputs": {"choice": ["yes", "no"]}}, word),
        ({"structured_outputs": {"regex": digits}}, digits),
        ({"structured_outputs": {"json": schema}}, record),
        ({"structured_outputs": {"json": json.dumps(schema),
                                 "disable_any_whitespace": True}}, r'\{"n":[0-9]\}'),
        ({"structured_outputs": {"grammar": gbnf}}, word),
        ({"guided_choice": ["yes", "no"]}, word),
        ({"guided_regex": digits}, digits),
        ({"guided_json": schema}, record),
        ({"guided_grammar": gbnf}, word),
        ({"regex": digits}, digits),
        ({"ebnf": gbnf}, word),
        ({"json_schema": json.dumps(schema)}, record),
        ({"json_schema": schema}, record),
        ({"grammar": gbnf}, word),
        ({"response_format": {"type": "json_object", "schema": schema}}, record),
        ({"response_format": {"type": "json_schema", "schema": schema}}, record),
        ({"response_format": tag}, tagged),
        ({"structured_outputs": {"structural_tag": json.dumps(tag)}}, tagged),
        ({"structural_tag": json.dumps(tag)}, tagged),
    ):
        ask = dict(model=clients.model, max_tokens=100, temperature=0, extra_body=fields)
        chat = clients.openai.chat.completions.create(messages=QUESTION, **ask).choices[0]
        text = clients.openai.completions.create(prompt="It is", **ask).choices[0]
        for found, end in ((chat.message.content, chat.finish_reason),
                           (text.text, text.finish_reason)):
            assert end == "stop" and re.fullmatch(expected, found), (fields, end, found)


@check
def native_spellings(clients):
    for fields, expected in (
        ({"regex": "[0-9]{4}"}, "[0-9]{4}"),
        ({"ebnf": 'root ::= "yes" | "no"'}, "(yes|no)"),
        ({"json_schema": '{"type": "boolean"}'}, "(true|false)"),
        ({"structural_tag": '{"format": {"type": "tag", "begin": "<", "end": ">", "content": '
                            '{"type": "regex", "pattern": "[ab]"}}}'}, "<[ab]>"),
    ):
        params = {"temperature": 0, "max_new_tokens": 50, **fields}
        text = clients.root.post("/generate", {"text": "It is", "sampling_params": params})["text"]
        assert re.fullmatch(expected, text), (fields, text)


@check
def what_is_not_obeyed_is_refused(clients):
    format = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"not": {}}}}
    for fields, param in (
        ({"response_format": format}, "response_format"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"regex": "a", "ebnf": 'root ::= "a"'}, "ebnf"),
        ({"regex": "(?=a)"}, "regex"),
    ):
        try:
            clients.openai.chat.completions.create(
                model=clients.model, messages=QUESTION, extra_body=fields
            )
        except openai.BadRequestError as error:
            assert error.param == param, (fields, error)
        else:
            raise AssertionError(f"{fields} was not refused")


def main():
    given = arguments(__doc__)
    clients = Clients(given.base_url, given.api_key)
    versions = f"openai-python {openai.__version__}, anthropic {anthropic.__version__}"
    return run(f"{versions}, {clients.model} at {given.base_url}", clients)


if __name__ == "__main__":
    sys.exit(main())
