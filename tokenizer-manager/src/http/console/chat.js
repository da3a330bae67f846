// A place to try a chat: one conversation, streamed, and what each answer took.

import { ask, events } from "./api.js";
import { byId, empty, make, short, time, write } from "./page.js";

export class Chat {
  messages = [];
  running = null;

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
    return body;
  }

  bubble(role, text) {
    const content = make("p", { class: "text" }, text);
    const element = make("article", { class: `message ${role}`, "aria-label": role === "user" ? "You" : "The model" }, content);
    if (this.messages.length === 0 && role === "user") this.log.replaceChildren();
    this.log.append(element);
    this.log.scrollTop = this.log.scrollHeight;
    return { element, content };
  }

  async submit() {
    const text = this.input.value.trim();
    if (text === "") return;
    this.input.value = "";
    this.bubble("user", text);
    this.messages.push({ role: "user", content: text });
    const answer = this.bubble("assistant", "");
    const stop = new AbortController();
    this.begin(stop);
    const conversation = this.messages;
    const state = { text: "", started: performance.now(), first: null, last: null, usage: null, finish: null };
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
    if (conversation === this.messages) this.remember(state, answer);
    this.end(stop);
  }

  take(event, state, answer) {
    if (event.error) throw new Error(event.error.message);
    state.usage = event.usage ?? state.usage;
    const choice = event.choices?.[0];
    if (!choice) return;
    state.finish = choice.finish_reason ?? state.finish;
    const more = choice.delta?.content ?? "";
    if (more === "") return;
    state.last = performance.now();
    state.first ??= state.last;
    state.text += more;
    const near = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 80;
    answer.content.append(more);
    if (near) this.log.scrollTop = this.log.scrollHeight;
  }

  begin(stop) {
    this.running = stop;
    this.log.setAttribute("aria-busy", "true");
    write(this.send, "Stop");
  }

  remember(state, answer) {
    if (state.text !== "") this.messages.push({ role: "assistant", content: state.text });
    else if (this.messages.at(-1)?.role === "user") this.messages.pop();
    const told = facts(state);
    if (told !== "") answer.element.append(make("p", { class: "facts-line" }, told));
    this.log.scrollTop = this.log.scrollHeight;
  }

  end(stop) {
    if (this.running !== stop) return;
    this.running = null;
    this.log.setAttribute("aria-busy", "false");
    write(this.send, "Send");
    this.input.focus({ preventScroll: true });
  }

  failed(answer, message) {
    answer.element.classList.add("error");
    answer.element.append(make("p", { class: "problem", role: "alert" }, message));
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
