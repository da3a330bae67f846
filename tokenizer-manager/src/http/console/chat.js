// A place to try a chat: one conversation, streamed, and what each answer took.

import { Answer } from "./answer.js";
import { ask, events } from "./api.js";
import { byId, empty, make, short, time, write } from "./page.js";

export class Chat {
  messages = [];
  running = null;
  /** The last answer, if it called tools whose results the next message brings. */
  waiting = null;

  constructor() {
    this.log = byId("chat-log");
    this.input = byId("chat-input");
    this.send = byId("chat-send");
    this.clear();
    byId("chat-clear").addEventListener("click", () => this.clear());
    byId("chat-form").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.running) this.running.abort();
      else void this.submit();
    });
    this.input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!this.running) void this.submit();
    });
  }

  /** Whether depths may be asked for is known when the server has said what it is. */
  describe(info) {
    byId("chat-depth-field").hidden = info.config.speculation.algorithm === null;
    this.model = info.served_model_name;
  }

  clear() {
    this.running?.abort();
    this.messages = [];
    this.waiting = null;
    this.log.replaceChildren(empty("Ask the model something. Texts stay in this page and are gone when you close it."));
    this.input.focus({ preventScroll: true });
  }

  body() {
    const body = {
      messages: [...this.messages],
      stream: true,
      stream_options: { include_usage: true },
    };
    const system = byId("chat-system").value.trim();
    if (system !== "") body.messages.unshift({ role: "system", content: system });
    for (const [field, id] of [["temperature", "chat-temperature"], ["max_tokens", "chat-tokens"], ["seed", "chat-seed"]]) {
      if (byId(id).value !== "") body[field] = Number(byId(id).value);
    }
    const depth = byId("chat-depth").value;
    if (depth !== "") body.speculative = { max_steps: Number(depth) };
    const tools = parsed("chat-tools", "Tools");
    if (tools !== undefined) {
      body.tools = tools;
      body.tool_choice = byId("chat-tool-choice").value;
    }
    const schema = parsed("chat-schema", "Schema of the answer");
    if (schema !== undefined) body.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
    return body;
  }

  bubble(role, ...content) {
    const element = make("article", { class: `message ${role}`, "aria-label": role === "user" ? "You" : "The model" }, ...content);
    if (this.messages.length === 0 && role === "user") this.log.replaceChildren();
    this.log.append(element);
    this.log.scrollTop = this.log.scrollHeight;
    return element;
  }

  async submit() {
    const text = this.input.value.trim();
    if (text === "" && !this.waiting) return;
    this.input.value = "";
    const called = this.waiting;
    if (called) this.messages.push(...called.results());
    this.waiting = null;
    if (text !== "") {
      this.bubble("user", make("p", { class: "text" }, text));
      this.messages.push({ role: "user", content: text });
    }
    const answer = new Answer(this.bubble("assistant"));
    const stop = new AbortController();
    this.begin(stop);
    const conversation = this.messages;
    const state = { started: performance.now(), first: null, last: null, usage: null, finish: null };
    try {
      const response = await ask("v1/chat/completions", { body: this.body(), signal: stop.signal });
      for await (const data of events(response)) {
        if (data === "[DONE]") break;
        this.take(JSON.parse(data), state, answer);
      }
    } catch (error) {
      if (stop.signal.aborted) state.finish = "stopped";
      else this.failed(answer, error.message);
    }
    // What was cleared is gone: its answer is none of the next conversation's.
    if (conversation === this.messages) this.remember(state, answer, { text, called });
    this.end(stop);
  }

  take(event, state, answer) {
    if (event.error) throw new Error(event.error.message);
    state.usage = event.usage ?? state.usage;
    const choice = event.choices?.[0];
    if (!choice) return;
    state.finish = choice.finish_reason ?? state.finish;
    const near = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 80;
    if (!answer.take(choice.delta)) return;
    state.last = performance.now();
    state.first ??= state.last;
    if (near) this.log.scrollTop = this.log.scrollHeight;
  }

  begin(stop) {
    this.running = stop;
    this.log.setAttribute("aria-busy", "true");
    write(this.send, "Stop");
  }

  remember(state, answer, asked) {
    if (!answer.isEmpty) this.messages.push(answer.message());
    else this.forget(asked);
    if (state.finish === "tool_calls") {
      this.waiting = answer;
      answer.askForResults();
    }
    const told = facts(state);
    if (told !== "") answer.element.append(make("p", { class: "facts-line" }, told));
    this.log.scrollTop = this.log.scrollHeight;
  }

  /** Takes back what was asked last and got no answer, so that it can be sent again. */
  forget({ text, called }) {
    const last = this.messages.findLastIndex(({ role }) => role === "assistant");
    this.messages.length = last + 1;
    if (this.input.value === "") this.input.value = text;
    this.waiting = called;
    called?.askForResults();
  }

  end(stop) {
    if (this.running !== stop) return;
    this.running = null;
    this.log.setAttribute("aria-busy", "false");
    write(this.send, "Send");
    if (!this.waiting) this.input.focus({ preventScroll: true });
  }

  failed(answer, message) {
    answer.element.classList.add("error");
    answer.element.append(make("p", { class: "problem", role: "alert" }, message));
  }
}

/** The JSON that a field of the options holds; nothing if the field is empty. */
function parsed(id, name) {
  const text = byId(id).value.trim();
  if (text === "") return undefined;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${name}: ${error.message}`);
  }
}

/** What an answer took, in a line. */
function facts({ started, first, last, usage, finish }) {
  const parts = [];
  if (first !== null) parts.push(`first token after ${time((first - started) / 1e3)}`);
  if (usage) {
    const tokens = usage.completion_tokens;
    parts.unshift(`${short(tokens)} tokens`);
    if (last > first && tokens > 1) parts.push(`${short((tokens - 1) / ((last - first) / 1e3))} tok/s`);
    const cached = usage.prompt_tokens_details?.cached_tokens;
    parts.push(`prompt ${short(usage.prompt_tokens)}${cached ? `, ${short(cached)} cached` : ""}`);
    const drafts = usage.completion_tokens_details?.speculative ?? usage.speculative;
    if (drafts?.verify_steps) parts.push(`${short(1 + drafts.accepted_tokens / drafts.verify_steps)} tokens per verification`);
  }
  if (finish === "length") parts.push("ended by its limit");
  if (finish === "stopped") parts.push("stopped");
  return parts.join(" · ");
}
