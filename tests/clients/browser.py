#!/usr/bin/env python3
"""Asks a running server from web pages, in headless Chromium.

    apt-get install chromium
    cargo run --release -- serve --port 8000 --cors-allowed-origins http://localhost:8003
    python tests/clients/browser.py [--base-url http://127.0.0.1:8000/v1]

The script serves two pages: one of the origin that the server lists, and, on the port after that,
one of an origin that it does not. A page makes its requests and posts back what it saw; what the
server saw is read from its metrics.
"""

import argparse
import collections
import http.server
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.parse
import urllib.request

QUESTION = "Count from 3 to 12."
COUNTED = "3, 4, 5, 6, 7, 8, 9, 10, 11, 12"
PROGRAM = os.environ.get("CHROMIUM", "chromium")
# A name that a stranger could register and let lead here.
REBOUND = "rebound.example.com"
CHECKS = []

PAGE = """<!doctype html><meta charset="utf-8"><title>A page</title><script type="module">
const { target, key, listed } = Object.fromEntries(new URLSearchParams(location.search));
const seen = {};
const headers = { "Content-Type": "application/json" };
if (key) headers.Authorization = `Bearer ${key}`;
const ask = { messages: [{ role: "user", content: QUESTION }], temperature: 0 };
const post = (body, more) => fetch(`${target}/v1/chat/completions`,
    { method: "POST", headers, body: JSON.stringify(body), ...more });
const quietly = (body) => fetch(`${target}/flush_cache`, { method: "POST", mode: "no-cors", body });
async function attempt(name, run) {
    try { seen[name] = await run(); } catch (error) { seen[name] = { error: error.name }; }
}

async function chat() {
    const answer = await post(ask);
    const { choices } = await answer.json();
    return { status: answer.status, id: answer.headers.get("x-request-id"),
             text: choices[0].message.content };
}

async function stream() {
    const reader = (await post({ ...ask, stream: true })).body.getReader();
    const decoder = new TextDecoder();
    let [whole, reads] = ["", 0];
    for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        whole += decoder.decode(value, { stream: true });
        reads += 1;
    }
    const events = whole.split("\\n\\n").filter((event) => event.startsWith("data: {"));
    const choices = events.flatMap((event) => JSON.parse(event.slice(6)).choices);
    return { reads, text: choices.map((choice) => choice.delta.content ?? "").join("") };
}

async function leave() {
    const control = new AbortController();
    const long = { ...ask, stream: true, max_tokens: 1900, ignore_eos: true };
    const answer = await post(long, { signal: control.signal });
    const reader = answer.body.getReader();
    await reader.read();
    control.abort();
    return reader.read();
}

async function refused(body, more) {
    const answer = await post(body, more);
    return { status: answer.status, code: (await answer.json()).error.code };
}

function image() {
    return new Promise((done) => {
        const image = new Image();
        image.onload = () => done({ image: "loaded" });
        image.onerror = () => done({ image: "refused" });
        image.src = `${target}/flush_cache`;
    });
}

function form() {
    return new Promise((done) => {
        const frame = document.createElement("iframe");
        frame.name = "answer";
        document.body.append(frame);
        const form = document.createElement("form");
        Object.assign(form, { method: "post", enctype: "text/plain", target: "answer",
                              action: `${target}/flush_cache` });
        document.body.append(form);
        frame.onload = () => done({});
        form.submit();
    });
}

if (listed) {
    await attempt("chat", chat);
    await attempt("stream", stream);
    await attempt("bad", () => refused({ ...ask, temperature: 9 }));
    await attempt("keyless", () => refused(ask, { headers: { "Content-Type": "text/plain" } }));
    await attempt("leave", leave);
} else {
    await attempt("chat", chat);
    await attempt("read", () => fetch(`${target}/v1/models`));
    await attempt("text", async () => ({ type: (await quietly("{}")).type }));
    await attempt("blob", async () => ({ type: (await quietly(new Blob(["{}"]))).type }));
    await attempt("image", image);
    await attempt("form", form);
}
await fetch("/seen", { method: "POST", body: JSON.stringify(seen) });
</script><body></body>""".replace("QUESTION", json.dumps(QUESTION))


def check(function):
    CHECKS.append(function)
    return function


class Pages(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        found = urllib.parse.urlsplit(self.path).path == "/"
        self.answer(200 if found else 404, PAGE.encode() if found else b"")

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200, b"")
        self.server.seen.put(json.loads(body))

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server:
    """The server under test, and the browser that is pointed at it."""

    def __init__(self, arguments):
        self.root = arguments.base_url.removesuffix("/v1")
        self.key = arguments.api_key
        self.operator = arguments.admin_key or self.key
        self.page = arguments.page_port

    def ask(self, path, body=None, key=None):
        """As no browser does: without an origin."""
        headers = {"Content-Type": "application/json"}
        if key or self.key:
            headers["Authorization"] = f"Bearer {key or self.key}"
        body = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.root + path, body, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read().decode()

    def cached(self):
        """Tokens of a long prompt that are found in the prefix cache."""
        messages = [{"role": "user", "content": QUESTION * 30}]
        body = {"messages": messages, "temperature": 0, "max_tokens": 1}
        usage = json.loads(self.ask("/v1/chat/completions", body))["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    def counters(self):
        """Tokens for clients, and answers of /flush_cache by status, of all tokenizer-managers."""
        counted = collections.Counter()
        for line in self.ask("/metrics").splitlines():
            if found := re.fullmatch(r"lockstep_(\w+)\{(.*)\} (\d+)", line):
                labels = dict(re.findall(r'(\w+)="([^"]*)"', found[2]))
                if found[1] == "front_generated_tokens_total":
                    counted["tokens"] += int(found[3])
                elif found[1] == "http_requests_total" and labels["route"] == "/flush_cache":
                    counted[labels["status"]] += int(found[3])
        return counted

    def command(self, url, profile, *options):
        """The command line of Chromium that opens `url`, with a profile of its own."""
        return [
            PROGRAM, f"--user-data-dir={profile}", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
            "--no-first-run", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", "--disable-features=HttpsUpgrades", *options, url,
        ]

    def visit(self, port, **query):
        """What the page of `port` saw."""
        pages = http.server.ThreadingHTTPServer(("127.0.0.1", port), Pages)
        pages.seen = queue.Queue()
        threading.Thread(target=pages.serve_forever, daemon=True).start()
        query = urllib.parse.urlencode({"target": self.root, **query})
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            url = f"http://localhost:{port}/?{query}"
            browser = subprocess.Popen(
                self.command(url, profile, "--remote-debugging-port=0"),
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
            try:
                return pages.seen.get(timeout=120)
            finally:
                browser.terminate()
                browser.wait()
                pages.shutdown()
                pages.server_close()

    def listed(self):
        return self.visit(self.page, listed=1, **({"key": self.key} if self.key else {}))

    def stranger(self):
        return self.visit(self.page + 1)


@check
def listed_page(server):
    seen = server.listed()
    assert seen["chat"]["status"] == 200 and seen["chat"]["text"] == COUNTED, seen
    assert seen["chat"]["id"], "the request's id is not exposed"
    assert seen["stream"]["text"] == COUNTED and seen["stream"]["reads"] > 1, seen
    assert seen["bad"] == {"status": 400, "code": "decimal_above_max_value"}, seen
    # A body that says it is text is refused; before that, one without a key.
    assert seen["keyless"]["status"] == (401 if server.key else 415), seen
    assert seen["leave"] == {"error": "AbortError"}, seen


@check
def strange_page(server):
    server.cached()
    assert server.cached() > 0
    before = server.counters()
    assert before["tokens"] > 0
    seen = server.stranger()
    after = server.counters()
    # Pre-flight fails, or the answer is kept from the page.
    assert seen["chat"] == seen["read"] == {"error": "TypeError"}, seen
    assert seen["text"] == seen["blob"] == {"type": "opaque"}, seen
    assert seen["image"] == {"image": "refused"} and seen["form"] == {}, seen
    # None of it was obeyed: text, blob, image and form have arrived, and were refused.
    status = "401" if server.key else "403"
    assert after - before == {status: 4}, (before, after)
    assert server.cached() > 0, "the cache was flushed"
    # That is what it looks like.
    server.ask("/flush_cache", {}, server.operator)
    assert server.cached() == 0


@check
def name_of_a_stranger(server):
    port = urllib.parse.urlsplit(server.root).port
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = server.command(
            f"http://{REBOUND}:{port}/v1/models", profile, "--dump-dom",
            f"--host-resolver-rules=MAP {REBOUND} 127.0.0.1",
        )
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              timeout=120, text=True, check=True)
    expected = "invalid_api_key" if server.key else "host_not_allowed"
    assert expected in done.stdout, done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--api-key")
    parser.add_argument("--admin-key", help="the operators' key [default: --api-key]")
    parser.add_argument("--page-port", type=int, default=8003, help="of the page that is listed")
    server = Server(parser.parse_args())
    if not shutil.which(PROGRAM):
        sys.exit(f"There is no {PROGRAM}; CHROMIUM names another.")
    version = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=False)
    print(f"{version.stdout.strip()} at {server.root}")
    failed = 0
    for function in CHECKS:
        try:
            function(server)
            print(f"ok      {function.__name__}")
        except Exception as error:
            failed += 1
            print(f"FAILED  {function.__name__}: {type(error).__name__}: {error}")
    print(f"{len(CHECKS) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
