"""The console in a real browser, against a real server under load.

The tests go on where the one before left off, as a reader would.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time

import pytest
from playwright.sync_api import expect, sync_playwright
from server import KEY, OPERATORS_KEY, PATIENCE, ROOT, Load, Server, until

PICTURES = ROOT / "docs" / "pictures"
LARGEST = 300 * 1024
OPTIONS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
WIDTHS = {"dark": (1280, 900), "light": (1280, 900), "phone": (390, 844)}
expect.set_options(timeout=60_000)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(scope="module")
def load(server):
    with Load(server) as load:
        yield load


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        program = os.environ["CHROMIUM"]
        yield playwright.chromium.launch(executable_path=program, args=OPTIONS)


class Reader:
    """A reader's page, and what the browser says of it."""

    def __init__(self, browser, server, name: str):
        width, height = WIDTHS[name]
        scheme = "dark" if name == "dark" else "light"
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme
        )
        self.name, self.server = name, server
        self.page = self.context.new_page()
        self.page.set_default_timeout(60_000)
        self.asked, self.faults = set(), []
        self.page.on("request", lambda request: self.asked.add(request.url))
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", self.said)

    def said(self, message):
        # The browser itself says that an answer was a refusal, which some are here.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.faults.append(message.text)

    def open(self):
        self.page.goto(self.server.url + "/console")
        return self.page

    def login(self, key: str):
        self.page.fill("#login-key", key)
        self.page.click("#login-form button[type=submit]")

    def picture(self, name: str, full: bool = False):
        """What is seen; kept where pictures are taken anew."""
        data = self.page.screenshot(full_page=full)
        assert len(data) < LARGEST, f"{name}: {len(data)} bytes"
        if os.environ.get("UPDATE_PICTURES"):
            PICTURES.mkdir(exist_ok=True)
            (PICTURES / f"console-{name}.png").write_bytes(data)


@pytest.fixture(scope="module")
def readers(browser, server, load):
    """One for each width and colour, all of whom look at the same time."""
    readers = {name: Reader(browser, server, name) for name in WIDTHS}
    yield readers
    for reader in readers.values():
        assert reader.faults == [], reader.name
        foreign = [url for url in reader.asked if not url.startswith(server.url + "/")]
        assert foreign == [], "it asks nobody else"
        assert not any("key" in url.lower() for url in reader.asked), "keys are in no address"


@pytest.fixture
def reader(readers):
    reader = readers["dark"]
    reader.page.bring_to_front()
    return reader


def number(text: str) -> float:
    found = re.search(r"[\d.,]+", text)
    return float(found[0].replace(",", "")) if found else 0


def tile(page, title: str):
    return page.locator(".tile", has=page.get_by_role("heading", name=title, exact=True)).locator("b")


def test_a_key_is_asked_for_and_a_wrong_one_is_refused(readers):
    for reader in readers.values():
        reader.page.bring_to_front()
        page = reader.open()
        expect(page.locator("#login")).to_be_visible()
        expect(page.locator("#login-why")).to_contain_text("provide an API key")
        expect(page.locator("#model")).to_have_text("Lockstep")
        if reader.name == "dark":
            reader.login("wrong")
            expect(page.locator("#login-why")).to_contain_text("Incorrect API key")
        reader.login(KEY)
        expect(page.locator("#state-text")).to_have_text("Serving")
        expect(page.locator("#model")).to_have_text("lockstep-demo-7m")
        assert page.evaluate("localStorage.length") == 0, "the key is the tab's alone"


def test_figures_are_those_of_the_load(readers, server):
    for reader in readers.values():
        page = reader.page
        page.bring_to_front()
        for title in ["Output", "First token", "Between tokens", "KV cache", "Prefix hits"]:
            until(lambda: number(tile(page, title).inner_text()) > 0, title)
        until(lambda: number(tile(page, "Running").inner_text()) > 0, "running")
        for chart in page.locator("#charts canvas").all():
            until(lambda: re.search(r"\d", chart.get_attribute("aria-label")), "a chart's values")
        blank = page.evaluate("""() => [...document.querySelectorAll("canvas")].filter((canvas) => {
            const dots = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
            return new Set(new Uint32Array(dots.buffer)).size < 8;
        }).length""")
        assert blank == 0, "charts that show nothing"


def test_ranks_are_told_apart(reader):
    page = reader.page
    rows = page.locator("#ranks .bars tr")
    expect(rows).to_have_count(2)
    for row in rows.all():
        assert re.search(r"\d (µs|ms|s)$", row.inner_text().strip()), row.inner_text()
    expect(page.locator("#dp-ranks tbody tr")).to_have_count(2)


def test_the_depth_and_its_switches_are_shown(reader, server):
    page = reader.page

    def switched():
        told = json.loads(server.ask("/speculation")[1])
        return told["switches"] > 1 and len(told["by_depth"]) > 1

    until(switched, "switches of the depth")
    depths = page.locator("#speculation canvas")
    until(lambda: "depth" in depths.get_attribute("aria-label"), "the depths of the last second")
    first = page.locator("#speculation .positions li b").first
    until(lambda: 0 < number(first.inner_text()) <= 100, "what is accepted first")
    facts = page.locator("#speculation dl")
    until(lambda: number(facts.locator("div", has_text="Switches").locator("dd").inner_text()) > 0, "switches")
    per_pass = facts.locator("div", has_text="Tokens per verification").locator("dd")
    assert number(per_pass.inner_text()) > 1


def test_pictures_under_load(readers):
    # A minute of history, the window that is shown at first.
    if os.environ.get("UPDATE_PICTURES"):
        for reader in readers.values():
            reader.page.bring_to_front()
            reader.page.reload()
        end = time.monotonic() + 62
        while time.monotonic() < end:
            # A page in the background looks at nothing, so each has its turn.
            for reader in readers.values():
                reader.page.bring_to_front()
                reader.page.wait_for_timeout(1300)
    for reader in readers.values():
        reader.page.bring_to_front()
        reader.page.wait_for_timeout(2500)
        reader.picture(reader.name, full=reader.name != "phone")


def test_a_phone_scrolls_one_way_alone(readers):
    page = readers["phone"].page
    page.bring_to_front()
    for tab in ["requests", "chat", "overview"]:
        page.click(f"#tab-{tab}")
        expect(page.locator(f"#{tab}")).to_be_visible()
        wide = page.evaluate("document.scrollingElement.scrollWidth - innerWidth")
        assert wide <= 0, f"{tab}: {wide} pixels too wide"


def test_everything_has_a_name_and_keys_reach_it(reader):
    page = reader.page
    nameless = page.evaluate("""() => [...document.querySelectorAll("button, input, select, textarea, a")]
        .filter((one) => !(one.textContent.trim() || one.labels?.[0]?.textContent.trim() || one.ariaLabel))
        .map((one) => one.outerHTML)""")
    assert nameless == []
    page.locator("body").press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    seen = set()
    for _ in range(8):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.id || document.activeElement.name"))
    assert {"tab-overview", "tab-requests", "tab-chat", "window"} <= seen


def test_requests_are_listed_and_aborted_by_operators(reader, server):
    page = reader.page
    # A client's key is not enough.
    page.click("#tab-requests")
    expect(page.locator("#requests-body")).to_contain_text("--admin-api-key-file")
    page.get_by_role("button", name="Enter the operators' key").click()
    expect(page.locator("#login-title")).to_contain_text("operators")
    reader.login(OPERATORS_KEY)
    expect(page.locator("#requests tbody tr").first).to_be_visible()

    reader.picture("requests")

    answers = []
    sampling = {"max_new_tokens": 1900, "ignore_eos": True}
    long = {"text": "Count from 1 to", "rid": "to-be-aborted", "sampling_params": sampling}

    def ask_until_aborted():
        # A fast server may end a text before the page is looked at.
        while not answers or "abort" not in answers[-1][1] and len(answers) < 100:
            answers.append(server.ask("/generate", long))

    client = threading.Thread(target=ask_until_aborted)
    client.start()
    row = page.locator("#requests tr", has_text="to-be-aborted")
    expect(row).to_be_visible()
    button = row.get_by_role("button", name="Abort to-be-aborted")
    button.click()
    assert not any("abort" in text for _, text in answers), "once is to ask"
    button.click()
    expect(page.locator("#requests-note")).to_contain_text("Aborted one request: to-be-aborted")
    client.join(PATIENCE)
    assert "abort" in answers[-1][1], answers
    expect(row).to_have_count(0)


def test_an_operator_pins_the_depth(reader, server):
    page = reader.page
    page.click("#tab-overview")
    control = page.get_by_label("Depth", exact=True)
    wanted = lambda: json.loads(server.ask("/speculation")[1])["range"]
    control.select_option(label="Pinned to 2")
    until(lambda: wanted() == {"min_depth": 2, "max_depth": 2}, "pinned")
    control.select_option(label="At most 3")
    until(lambda: wanted() == {"min_depth": 0, "max_depth": 3}, "capped")
    control.select_option("free")
    until(lambda: (wanted() or {}).get("max_depth") not in (2, 3), "free")


def test_a_chat_is_streamed(reader):
    page = reader.page
    page.click("#tab-chat")
    page.click("#chat-options summary")
    page.fill("#chat-temperature", "0")
    page.click("#chat-options summary")
    page.fill("#chat-input", "Count from 3 to 12.")
    page.keyboard.press("Enter")
    answers = page.locator(".message.assistant")
    expect(answers.nth(0).locator(".facts-line")).to_contain_text("first token after")
    expect(answers.nth(0).locator(".text")).to_have_text("3, 4, 5, 6, 7, 8, 9, 10, 11, 12")
    page.fill("#chat-input", "Who are you?")
    page.click("#chat-send")
    expect(answers.nth(1).locator(".facts-line")).to_contain_text("tokens")
    # What was said before is a part of the next prompt.
    prompts = [
        number(answers.nth(at).locator(".facts-line").inner_text().split("prompt ")[1])
        for at in range(2)
    ]
    assert prompts[1] > 2 * prompts[0], prompts
    reader.picture("chat")
    page.click("#chat-options summary")
    page.fill("#chat-system", "Answer briefly.")
    page.fill("#chat-tokens", "1000000")
    page.fill("#chat-input", "Too much?")
    page.click("#chat-send")
    expect(answers.nth(2).get_by_role("alert")).to_contain_text("1000000")
    page.click("#chat-clear")
    expect(page.locator(".message")).to_have_count(0)


CALLED = [
    {"role": "assistant", "content": ""},
    {"reasoning_content": "The weather "},
    {"reasoning_content": "is asked for."},
    {"content": "I look it up."},
    {"tool_calls": [{"index": 0, "id": "call_1", "type": "function",
                     "function": {"name": "weather", "arguments": ""}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": '}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '"Paris"}'}}]},
]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


def streamed(deltas, reason):
    """A chat's answer as the server streams it."""
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def test_reasoning_and_calls_are_shown_and_results_sent(reader):
    """The demo model does neither by itself, so its answers are scripted here."""
    page = reader.page
    page.click("#tab-chat")
    page.evaluate("document.getElementById('chat-options').open = true")
    page.fill("#chat-system", "")
    page.fill("#chat-tokens", "")
    page.fill("#chat-tools", "[{")
    page.fill("#chat-input", "How is the weather in Paris?")
    page.click("#chat-send")
    answers = page.locator(".message.assistant")
    expect(answers.nth(0).get_by_role("alert")).to_contain_text("Tools: ")
    # What got no answer is there to be sent again, and begins the conversation.
    expect(page.locator("#chat-input")).to_have_value("How is the weather in Paris?")
    page.fill("#chat-tools", json.dumps(TOOLS))
    page.evaluate("document.getElementById('chat-options').open = false")

    asked, scripts = [], [streamed(CALLED, "tool_calls"), None, streamed([{"content": "Sunny."}], "stop")]

    def script(route):
        asked.append(route.request.post_data_json)
        if (body := scripts.pop(0)) is None:
            route.fulfill(status=503, json={"error": {"message": "It is busy."}})
        else:
            route.fulfill(status=200, content_type="text/event-stream", body=body)

    page.route("**/v1/chat/completions", script)
    page.click("#chat-send")
    call = answers.nth(0).locator(".call")
    expect(call.locator("code")).to_have_text('{"city": "Paris"}')
    expect(call.locator("b")).to_have_text("weather")
    thought = answers.nth(0).locator(".thought")
    assert thought.get_attribute("open") is None, "closed once the answer has begun"
    expect(thought.locator(".text")).to_have_text("The weather is asked for.")
    expect(answers.nth(0).locator("> .text")).to_have_text("I look it up.")
    result = page.get_by_label("Result of weather")
    result.fill("18 degrees")
    reader.picture("tools")
    page.click("#chat-send")
    # What was refused can be sent again.
    expect(answers.nth(1).get_by_role("alert")).to_contain_text("It is busy.")
    expect(result).to_be_enabled()
    page.click("#chat-send")
    expect(answers.nth(2).locator("> .text")).to_have_text("Sunny.")
    page.unroute("**/v1/chat/completions")

    assert asked[0]["tools"] == TOOLS and asked[0]["tool_choice"] == "auto"
    assert asked[1] == asked[2]
    question, answer, told = asked[2]["messages"]
    assert question == {"role": "user", "content": "How is the weather in Paris?"}
    assert answer == {
        "role": "assistant", "content": "I look it up.",
        "reasoning_content": "The weather is asked for.",
        "tool_calls": [{"id": "call_1", "type": "function",
                        "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}],
    }
    assert told == {"role": "tool", "tool_call_id": "call_1", "content": "18 degrees"}
    page.evaluate("document.getElementById('chat-options').open = true")
    page.fill("#chat-tools", "")
    page.click("#chat-clear")


def test_an_answer_follows_a_schema(reader):
    page = reader.page
    page.click("#tab-chat")
    page.evaluate("document.getElementById('chat-options').open = true")
    page.fill("#chat-tokens", "200")
    schema = {
        "type": "object", "properties": {"sum": {"type": "integer", "maximum": 99}},
        "required": ["sum"], "additionalProperties": False,
    }
    page.fill("#chat-schema", json.dumps(schema))
    page.fill("#chat-input", "What is 17 plus 25?")
    page.click("#chat-send")
    answer = page.locator(".message.assistant")
    expect(answer.locator(".facts-line")).to_contain_text("tokens")
    assert list(json.loads(answer.locator("> .text").inner_text())) == ["sum"]
    page.fill("#chat-schema", "")
    page.fill("#chat-tokens", "")
    page.click("#chat-clear")

def test_a_chat_that_is_cleared_is_forgotten(reader):
    page = reader.page
    page.click("#tab-chat")
    page.evaluate("document.getElementById('chat-options').open = true")
    page.fill("#chat-system", "")
    page.fill("#chat-tokens", "1500")
    page.fill("#chat-input", "Count from 1 to 900.")
    page.click("#chat-send")
    answer = page.locator(".message.assistant .text")
    until(lambda: answer.inner_text() != "", "an answer's start")
    page.click("#chat-clear")
    expect(page.locator("#chat-send")).to_have_text("Send")
    page.fill("#chat-tokens", "5")
    page.fill("#chat-input", "Who are you?")
    with page.expect_request("**/v1/chat/completions") as asked:
        page.click("#chat-send")
    assert asked.value.post_data_json["messages"] == [{"role": "user", "content": "Who are you?"}]
    expect(page.locator(".message.assistant .facts-line")).to_contain_text("tokens")
    page.fill("#chat-tokens", "")
    page.click("#chat-clear")


def test_a_chat_can_be_stopped(reader):
    page = reader.page
    page.click("#tab-chat")
    page.evaluate("document.getElementById('chat-options').open = true")
    page.fill("#chat-tokens", "1500")
    page.fill("#chat-system", "")
    page.fill("#chat-input", "Count from 1 to 900.")
    page.click("#chat-send")
    answer = page.locator(".message.assistant .text")
    until(lambda: answer.inner_text() != "" or page.locator(".facts-line").count(), "an answer's start")
    if page.locator("#chat-send").inner_text() == "Stop":
        page.click("#chat-send")
    expect(page.locator("#chat-send")).to_have_text("Send")
    expect(page.locator(".facts-line")).to_be_visible()


def test_a_server_that_has_gone_is_said_to_be_and_noticed_when_it_is_back(reader, server):
    page = reader.page
    page.click("#tab-overview")
    server.stop()
    expect(page.locator("#state-text")).to_have_text("Unreachable")
    server.__enter__()
    expect(page.locator("#state-text")).to_have_text("Serving")
    until(lambda: number(tile(page, "Output").inner_text()) > 0, "figures of the new one")
