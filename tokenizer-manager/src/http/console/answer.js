// An answer as it comes: reasoning, text and tool calls, each in a place of its own.

import { make } from "./page.js";

export class Answer {
  text = "";
  reasoning = "";
  calls = [];

  /** Begins an empty answer in a message of the page. */
  constructor(element) {
    this.element = element;
    this.content = make("p", { class: "text" });
    element.append(this.content);
  }

  /** True if the model has said nothing yet. */
  get isEmpty() {
    return this.text === "" && this.reasoning === "" && this.calls.length === 0;
  }

  /** Takes in the delta of a chunk. Returns false if it says nothing. */
  take(delta) {
    const { content, reasoning_content: reasoning, tool_calls: calls } = delta ?? {};
    if (reasoning) this.think(reasoning);
    if (content) {
      // What was thought is of less interest once the answer begins.
      if (this.thought && this.text === "") this.thought.open = false;
      this.text += content;
      this.content.append(content);
    }
    for (const call of calls ?? []) this.call(call);
    return Boolean(reasoning || content || calls?.length);
  }

  think(more) {
    if (!this.thought) {
      this.thinking = make("p", { class: "text" });
      this.thought = make("details", { class: "thought", open: true }, make("summary", {}, "Reasoning"), this.thinking);
      this.element.insertBefore(this.thought, this.content);
    }
    this.reasoning += more;
    this.thinking.append(more);
  }

  /** Takes in a piece of the call with this index: its id and name come first. */
  call({ index, id, function: { name, arguments: more } = {} }) {
    let call = this.calls[index];
    if (!call) {
      const title = make("b", {});
      const shown = make("code", { class: "text" });
      const box = make("div", { class: "call" }, title, shown);
      this.element.append(box);
      call = this.calls[index] = { id: "", name: "", arguments: "", title, shown, box };
    }
    call.id ||= id ?? "";
    if (name) {
      call.name += name;
      call.title.textContent = call.name;
    }
    call.arguments += more ?? "";
    call.shown.append(more ?? "");
  }

  /** Asks the reader for the result of each call, since the page runs no tools. */
  askForResults() {
    for (const call of this.calls) {
      if (call.result) {
        call.result.disabled = false;
        continue;
      }
      call.result = make("textarea", { rows: 1, placeholder: "Type its result, then send" });
      call.box.append(make("label", {}, `Result of ${call.name}`, call.result));
    }
    this.calls[0]?.result.focus({ preventScroll: true });
  }

  /** The results as messages. They can't be changed while these are on their way. */
  results() {
    return this.calls.map(({ id, result }) => {
      result.disabled = true;
      return { role: "tool", tool_call_id: id, content: result.value };
    });
  }

  /** The answer as a message of the conversation. */
  message() {
    const message = { role: "assistant", content: this.text === "" && this.calls.length > 0 ? null : this.text };
    if (this.reasoning !== "") message.reasoning_content = this.reasoning;
    if (this.calls.length > 0) {
      message.tool_calls = this.calls.map(({ id, name, arguments: given }) => (
        { id, type: "function", function: { name, arguments: given } }
      ));
    }
    return message;
  }
}
