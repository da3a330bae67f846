// How deep is drafted, what of it is accepted, and an operator's hand on it.

import { json } from "./api.js";
import { DepthChart } from "./charts.js";
import { grown, grownBy } from "./metrics.js";
import { byId, empty, make, percent, short, time, write } from "./page.js";

/** Seconds over which acceptance is told. */
const MINUTE = 60;

export class Speculation {
  constructor(after) {
    this.place = byId("speculation");
    this.after = after;
    this.card = null;
  }

  /** `told` is the answer of `/speculation`, or `null`. */
  show(history, window, told) {
    if (told === null) return;
    if (told.algorithm === null) {
      this.off();
      return;
    }
    if (this.card === null) this.build(told);
    this.showDepths(history, window, told);
    this.showPositions(history);
    this.showFacts(history, told);
    this.control?.show(told);
  }

  off() {
    if (this.card === false) return;
    this.card = false;
    this.place.replaceChildren(
      make("div", { class: "card wide" }, empty("This server drafts nothing. Start it with --speculative-algorithm NAME, and --speculative-adaptive to let the depth follow the load.")),
    );
  }

  build(told) {
    this.card = new DepthChart("Draft depth", "Steps by their draft steps: the darker, the more of them; below, how often the depth changed");
    this.card.element.classList.add("wide");
    this.positions = make("ol", { class: "positions" });
    this.facts = make("dl", { class: "facts" });
    const accepted = make("div", { class: "card tall" },
      make("h3", { title: "Of the tokens drafted at a position, those that were accepted" }, "Accepted by position", make("small", {}, " last minute")),
      this.positions);
    const facts = make("div", { class: "card" }, make("h3", {}, "What it brings", make("small", {}, " last minute")), this.facts);
    if (told.tiers !== null) {
      this.control = new Control(told, this.after);
      facts.append(this.control.element);
    }
    this.place.replaceChildren(this.card.element, accepted, facts);
  }

  showDepths(history, window, told) {
    const from = history.last.at - window * 1000;
    const columns = [];
    const ran = new Set();
    history.samples.forEach((now, at) => {
      const before = history.samples[at - 1];
      if (before === undefined || now.at < from) return;
      const steps = grownBy(before, now, "depthSteps");
      const total = [...steps.values()].reduce((sum, count) => sum + count, 0);
      for (const [depth, count] of steps) if (count > 0) ran.add(depth);
      columns.push({ from: before.at, at: now.at, steps, total, switches: grown(before, now, "switches") ?? 0 });
    });
    const tiers = told.tiers?.map((tier) => tier.depth) ?? [];
    const depths = [...new Set([...tiers, ...ran])].sort((a, b) => a - b);
    this.card.set(columns, depths, history.last.at, window);
  }

  showPositions(history) {
    const [from, now] = [history.before(MINUTE), history.last];
    const proposed = grownBy(from, now, "positionsProposed");
    const accepted = grownBy(from, now, "positionsAccepted");
    const known = [...proposed].filter(([, count]) => count > 0);
    if (known.length === 0) {
      this.positions.replaceChildren(make("li", { class: "empty" }, "Nothing was drafted in the last minute."));
      return;
    }
    this.positions.replaceChildren(...known.map(([position, count]) => {
      const share = (accepted.get(position) ?? 0) / count;
      const bar = make("span", { class: "fill", "aria-hidden": "true" });
      bar.style.height = `${Math.max(share * 100, 1)}%`;
      const hint = `${short(accepted.get(position) ?? 0)} of ${short(count)} at position ${position}`;
      return make("li", { title: hint }, make("b", {}, percent(share)), make("span", { class: "column" }, bar), make("span", { class: "at" }, make("span", { class: "hidden" }, "position "), String(position)));
    }));
  }

  showFacts(history, told) {
    const [from, now] = [history.before(MINUTE), history.last];
    const more = (key) => grown(from, now, key);
    const verified = more("verified");
    const perStep = verified ? 1 + more("accepted") / verified : null;
    const expected = told.expected;
    const facts = [
      ["Tokens per verification", short(perStep)],
      ["Drafts accepted", percent(more("drafted") ? more("accepted") / more("drafted") : null)],
      ["Depth now", told.depth === null ? "–" : String(told.depth)],
      ["Switches", `${short(more("switches"))} · ${short(told.switches)} since the start`],
      ["Step, expected and measured", expected ? `${time(expected.predicted_step_seconds)} · ${time(expected.measured_step_seconds)}` : "–"],
    ];
    if (this.facts.childElementCount === 0) {
      for (const [name] of facts) this.facts.append(make("div", {}, make("dt", {}, name), make("dd")));
    }
    [...this.facts.querySelectorAll("dd")].forEach((place, at) => write(place, facts[at][1]));
  }
}

/** Pins or caps the depth, where it adapts. */
class Control {
  constructor(told, after) {
    const depths = told.tiers.map((tier) => tier.depth);
    const options = (name, word) => depths.map((depth) => make("option", { value: `${name}:${depth}` }, `${word} ${depth}`));
    this.select = make("select", { id: "depth-control" },
      make("option", { value: "free" }, `Follows the policy (${told.policy})`),
      make("optgroup", { label: "Pinned" }, ...options("depth", "Pinned to")),
      make("optgroup", { label: "Capped" }, ...options("max_depth", "At most")));
    this.status = make("span", { class: "muted small", role: "status" });
    this.element = make("p", { class: "control" }, make("label", { htmlFor: "depth-control" }, "Depth"), this.select, this.status);
    this.select.addEventListener("change", () => this.apply(after));
  }

  async apply(after) {
    const [field, depth] = this.select.value.split(":");
    const body = depth === undefined ? {} : { [field]: Number(depth) };
    this.busy = true;
    try {
      await json("speculation", { who: "operator", body });
      write(this.status, "Applied");
      setTimeout(() => write(this.status, ""), 3000);
    } catch (error) {
      write(this.status, error.message);
    }
    this.busy = false;
    after();
  }

  show({ range }) {
    if (this.busy || document.activeElement === this.select) return;
    let value = "free";
    if (range) value = range.min_depth === range.max_depth ? `depth:${range.max_depth}` : `max_depth:${range.max_depth}`;
    this.select.value = value;
  }
}
