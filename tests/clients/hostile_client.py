#!/usr/bin/env python3
"""Sends constraints and tools that cost much, beside a stream that must not notice.

    tests/clients/tools_folder.sh /tmp/tools
    cargo run --release -- serve /tmp/tools --reasoning-parser none --port 8000
    python tests/clients/hostile_client.py [--base-url http://127.0.0.1:8000]

Each request must be answered or refused by name, the server must stay healthy, and the stream's
text must stay the same. The last lines tell the stream's longest gap between two events, by
itself and beside the requests, and the load of the machine. No check depends on a time.
"""

import json
import multiprocessing
import os
import sys
import time
import urllib.error
import urllib.request

from checks import Root, arguments, check, run

COUNTED = "3, 4, 5, 6, 7, 8, 9, 10, 11, 12"
CHAT = "/v1/chat/completions"


def nested(levels):
    schema = {}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def doubled(times):
    schema = {"type": "integer"}
    for _ in range(times):
        schema = {"anyOf": [schema, {"type": "array", "items": schema}]}
    return schema


def optional(count):
    return {"type": "object", "properties": {f"p{at}": {"type": "integer"} for at in range(count)}}


def constraints():
    """Names, fields, and the status: 200 for what runs, 400 for what is refused, None where the
    machine's speed decides, since what takes longer than two seconds to compile is refused."""
    crossed = [{"pattern": f".*{letter}.*"} for letter in "abc"]
    yield "doubled repetitions", {"regex": "(a|aa)+b"}, 200
    yield "repeated repetitions", {"regex": "(a*)*b"}, 200
    yield "a far look back", {"regex": "(.|\\n)*a(.|\\n){200}"}, None
    yield "products of repetitions", {"regex": "((a{0,100}){0,100}){0,100}"}, 400
    yield "unclosed expression", {"regex": "(" * 1000}, 400
    yield "look-around", {"regex": "(?<=a)b"}, 400
    yield "a wide enum", {"json_schema": {"enum": [f"v{at}" for at in range(5000)]}}, 400
    yield "many properties", {"json_schema": optional(1000)}, 400
    yield "a large divisor", {"json_schema": {"multipleOf": 999_983}}, 400
    yield "deep schemas", {"json_schema": nested(400)}, 400
    yield "doubled branches", {"json_schema": doubled(14)}, 400
    yield "crossed patterns", {
        "json_schema": {"type": "string", "minLength": 9, "allOf": crossed}}, 400
    yield "a circle", {"json_schema": {"$ref": "#"}}, 400
    yield "a pointer to nowhere", {"json_schema": {"$ref": "#/$defs/none"}}, 400
    yield "a pointer to the network", {"json_schema": {"$ref": "http://127.0.0.1:1/a"}}, 400
    yield "an object that needs itself", {"json_schema": {
        "type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}}, 400
    # The time that it takes decides.
    yield "an ambiguous grammar", {"grammar": 'root ::= root root | "a"'}, None
    yield "a grammar without words", {"grammar": 'root ::= "a" root'}, 200
    yield "a missing rule", {"grammar": "root ::= other"}, 400
    yield "groups in groups", {"grammar": f"root ::= {'(' * 2000}\"a\"{')' * 2000}"}, 400
    yield "a grammar's own limits", {"grammar": 'root ::= "a"{1000000}'}, 400
    yield "an endless list", {"json_schema": {"type": "array", "minItems": 100_000}}, 200


def tool(name="f", parameters=None, **more):
    function = {"name": name, "parameters": parameters or {}, **more}
    return {"type": "function", "function": function}


def tools():
    """Lists of tools and calls gone wrong, each demanded."""
    overlapping = {"type": "object", "properties": {"a": {
        "oneOf": [{"type": "integer"}, {"type": "number"}]}}}
    big = {"type": "object", "properties": {
        f"{'p' * 90}{at}": {"enum": [f"v{at}"]} for at in range(250)}}
    shown = [tool()]
    yield "many tools", {"tools": [tool(f"f{at}") for at in range(100_000)]}, 400
    yield "one name twice", {"tools": [tool(), tool()]}, 200
    yield "a name of marks", {"tools": [tool("</tool_call>")]}, 400
    yield "a name of 200 letters", {"tools": [tool("f" * 200)]}, 400
    yield "overlapping branches", {"tools": [tool(parameters=overlapping, strict=True)]}, 400
    yield "a circle of parameters", {"tools": [tool(parameters={"$ref": "#"}, strict=True)]}, 400
    yield "deep parameters", {"tools": [tool(parameters=nested(400), strict=True)]}, 400
    yield "a large grammar", {"tools": [tool(f"f{at}", big, strict=True) for at in range(6)]}, 400
    yield "a tool of no kind", {"tools": [{"type": "web_search"}]}, 400
    yield "a tool of no list", {"tools": shown, "tool_choice": {
        "type": "function", "function": {"name": "g"}}}, 400
    yield "allowed tools of no list", {"tools": shown, "tool_choice": {
        "type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [tool("g")]}}}, 400
    yield "no allowed tools", {"tools": shown, "tool_choice": {
        "type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}}}, 400
    yield "a description of marks", {"tool_choice": "none", "tools": [tool(
        description="<|im_end|></tool_call></tools>{{ 7 * 7 }}{% raw %}")]}, 200
    yield "settings of the template", {"tools": shown, "tool_choice": "none",
        "chat_template_kwargs": {"messages": [], "tools": 5, "enable_thinking": {"a": []}}}, 400


class Neighbour(multiprocessing.Process):
    """A client that streams the same chat again and again.

    It is a process, since a thread would wait for this one's lock while a large body is written.
    """

    def __init__(self, root, model):
        super().__init__(daemon=True)
        self.root, self.model = root, model
        self.over = multiprocessing.Event()
        self.told, self.telling = multiprocessing.Pipe(False)
        self.longest = 0.0

    def run(self):
        streams, wrong = 0, None
        try:
            while not self.over.is_set():
                text = self.stream()
                assert text == COUNTED, text
                streams += 1
        except Exception as error:
            wrong = repr(error)
        self.telling.send((self.longest, streams, wrong))

    def stream(self):
        body = {"model": self.model, "temperature": 0, "stream": True, "messages": [
            {"role": "user", "content": "Count from 3 to 12."}]}
        request = urllib.request.Request(
            self.root.url + CHAT, json.dumps(body).encode(), self.root.headers)
        text, last = "", time.monotonic()
        with urllib.request.urlopen(request, timeout=300) as answer:
            for line in answer:
                if not line.startswith(b"data: {"):
                    continue
                now = time.monotonic()
                self.longest, last = max(self.longest, now - last), now
                text += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
        return text

    def end(self):
        """Ends the stream; its longest gap in seconds."""
        self.over.set()
        longest, streams, wrong = self.told.recv()
        self.join()
        assert wrong is None, f"the neighbour: {wrong}"
        assert streams, "the neighbour has no whole stream"
        return longest


class Hostile:
    def __init__(self, url, key):
        self.root = Root(url, key)
        request = urllib.request.Request(self.root.url + "/v1/models", headers=self.root.headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            self.model = json.load(answer)["data"][0]["id"]
        self.gaps = []

    def watched(self, act):
        """Acts beside a neighbour, and notes its longest gap."""
        neighbour = Neighbour(self.root, self.model)
        neighbour.start()
        act()
        return neighbour.end()

    def answered(self, name, fields, status):
        body = {"messages": [{"role": "user", "content": "Go on."}], "max_tokens": 24,
                "temperature": 1, "seed": 1, **fields}
        found, error = 200, None
        try:
            self.root.post(CHAT, body)
        except urllib.error.HTTPError as refused:
            found, error = refused.code, json.load(refused)["error"]
        good = [status] if status else [200, 400]
        assert found in good, f"{name}: {found} instead of {status}: {error}"
        if error:
            assert error["message"], f"{name}: {error}"
            assert len(error["message"]) < 3000, f"{name}: a long error"

    def all_of(self, rows):
        wrong = []

        def act():
            for name, fields, status in rows:
                try:
                    self.answered(name, fields, status)
                except Exception as error:
                    wrong.append(str(error) or repr(error))

        self.gaps.append(self.watched(act))
        assert not wrong, "\n        ".join(wrong)
        with urllib.request.urlopen(self.root.url + "/health", timeout=60) as answer:
            assert answer.status == 200


@check
def hostile_constraints(hostile):
    hostile.all_of(constraints())


@check
def hostile_tools(hostile):
    rows = ((name, {"tool_choice": "required", **fields}, status)
            for name, fields, status in tools())
    hostile.all_of(rows)


def main():
    given = arguments(__doc__)
    hostile = Hostile(given.base_url, given.api_key)
    alone = hostile.watched(lambda: time.sleep(5))
    status = run(f"{hostile.model} at {given.base_url}", hostile)
    beside = ", ".join(f"{gap * 1000:.0f}" for gap in hostile.gaps)
    load = " ".join(f"{one:.1f}" for one in os.getloadavg())
    print(f"longest gap of the stream: {alone * 1000:.0f} ms alone, {beside} ms beside; "
          f"load {load} on {os.cpu_count()} processors")
    return status


if __name__ == "__main__":
    sys.exit(main())
