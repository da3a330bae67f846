// The requests that run and wait, and their end.

import { json } from "./api.js";
import { age, byId, careful, empty, make, short, write } from "./page.js";

const HEAD = ["State", "Request", "Age", "Prompt", "Output", "DP rank", ""];

export class Requests {
  rows = new Map();

  /** `unlock` asks the reader for the operators' key. */
  constructor(unlock) {
    this.unlock = make("button", { type: "button" }, "Enter the operators' key");
    this.unlock.addEventListener("click", unlock);
    this.body = byId("requests-body");
    this.note = byId("requests-note");
    this.empty = empty("Nothing runs and nothing waits. Requests appear here from their arrival to their last token, without their texts.");
    this.tbody = make("tbody");
    this.table = make("table", { class: "requests" },
      make("thead", {}, make("tr", {}, ...HEAD.map((text) => make("th", { scope: "col" }, text || make("span", { class: "hidden" }, "Abort"))))),
      this.tbody);
    this.body.append(this.empty);
    const all = careful("Abort all", "Abort every request of the server?", () => this.abort({ abort_all: true }, "all"));
    all.id = "abort-all";
    byId("abort-all").replaceWith(all);
    this.all = all;
  }

  /** Asks again and shows the answer. */
  async refresh() {
    let answer;
    try {
      answer = await json("requests", { who: "operator", quiet: true });
    } catch (error) {
      if (error.status !== undefined) this.refused(error);
      return;
    }
    this.show(answer);
  }

  refused(error) {
    this.all.hidden = true;
    write(byId("requests-total"), "");
    const said = this.body.querySelector(".empty");
    if (said !== null && said.textContent === error.message) return;
    const locked = error.status === 401 ? [make("p", { class: "locked" }, this.unlock)] : [];
    this.body.replaceChildren(empty(error.message), ...locked);
  }

  show({ total, requests }) {
    const several = requests.some(({ dp_rank }) => dp_rank > 0);
    this.table.classList.toggle("one-dp", !several && !this.table.classList.contains("several"));
    if (several) this.table.classList.add("several");
    const running = requests.filter(({ state }) => state === "running").length;
    const beyond = total > requests.length ? ` · the first ${requests.length} are shown` : "";
    write(byId("requests-total"), total === 0 ? "" : `${running} running · ${total - running} waiting${beyond}`);
    this.all.hidden = total === 0;
    const place = requests.length === 0 ? this.empty : this.table;
    if (this.body.firstChild !== place) this.body.replaceChildren(place);
    this.update(requests);
  }

  /** Rows stay the same elements while their requests live, so that a button is not moved from under a hand. */
  update(requests) {
    const seen = new Map();
    const rows = new Map();
    for (const request of requests) {
      // Choices of one request share its id.
      const choice = seen.get(request.rid) ?? 0;
      seen.set(request.rid, choice + 1);
      const key = `${choice} ${request.rid}`;
      const row = this.rows.get(key) ?? this.row(request, choice);
      rows.set(key, row);
      row.show(request);
    }
    this.rows = rows;
    const elements = [...rows.values()].map((row) => row.element);
    if (elements.length !== this.tbody.children.length || elements.some((row, at) => row !== this.tbody.children[at])) {
      this.tbody.replaceChildren(...elements);
    }
  }

  row({ rid }, choice) {
    const [chip, past, prompt, dp] = [make("span", { class: "chip" }), make("td", { class: "number", "data-label": "Age" }), make("td", { class: "number", "data-label": "Prompt" }), make("td", { class: "number dp", "data-label": "DP rank" })];
    const fill = make("span", { class: "fill" });
    const count = make("span");
    const name = make("code", { title: rid }, rid);
    const abort = careful("Abort", "Abort?", () => this.abort({ rid }, rid));
    abort.setAttribute("aria-label", `Abort ${rid}`);
    const id = make("td", { class: "id" }, name, ...(choice > 0 ? [make("small", {}, ` choice ${choice + 1}`)] : []));
    const element = make("tr", {}, make("td", {}, chip), id, past, prompt,
      make("td", { class: "output", "data-label": "Output" }, count, make("span", { class: "meter" }, fill)), dp, make("td", { class: "act" }, abort));
    const show = (request) => {
      write(chip, request.state);
      chip.dataset.state = request.state;
      write(past, age(request.age_seconds));
      const cached = request.cached_tokens ? ` (${short(request.cached_tokens)} cached)` : "";
      write(prompt, short(request.prompt_tokens) + cached);
      write(count, `${short(request.completion_tokens)} / ${short(request.max_tokens)}`);
      fill.style.width = `${(100 * request.completion_tokens) / Math.max(request.max_tokens, 1)}%`;
      write(dp, request.dp_rank === null ? "–" : String(request.dp_rank));
    };
    return { element, show };
  }

  async abort(body, name) {
    let text;
    try {
      const { aborted } = await json("abort_request", { who: "operator", body });
      text = aborted === 0 ? `${name} had ended already.` : `Aborted ${aborted === 1 ? "one request" : `${aborted} requests`}: ${name}.`;
    } catch (error) {
      text = `Not aborted: ${error.message}`;
    }
    write(this.note, text);
    this.note.hidden = false;
    await this.refresh();
  }
}
