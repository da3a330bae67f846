// Throughput, queue, cache and latencies, and what each rank does.

import { LineChart } from "./charts.js";
import { grown, grownBy, quantile, rate, share } from "./metrics.js";
import { byId, empty, make, percent, short, time, write } from "./page.js";

/** Seconds over which rates of charts are taken, and quantiles. */
const RATE = 3;
const QUANTILE = 15;
/** Seconds over which the tiles' are. */
const MINUTE = 60;

const part = (of, whole) => (of === null || !whole ? null : of / whole);

const quantiles = (key) => [0.5, 0.9, 0.99].map((q) => [QUANTILE, (from, now) => quantile(from, now, key, q)]);
const percentiles = [
  { name: "p50", color: "teal" },
  { name: "p90", color: "blue" },
  { name: "p99", color: "amber" },
];

/** The charts: heading, what it means, series, how values read, and what is drawn. */
const CHARTS = [
  {
    title: "Tokens per second",
    hint: "Generated, and of prompts",
    series: [{ name: "generated", color: "teal", fill: true }, { name: "prompt", color: "blue" }],
    format: short,
    draws: [[RATE, (from, now) => rate(from, now, "generated")], [RATE, (from, now) => rate(from, now, "prompt")]],
  },
  {
    title: "Requests",
    hint: "In the batch, and in the queue",
    series: [{ name: "running", color: "teal", fill: true }, { name: "waiting", color: "amber" }],
    format: short,
    draws: [[0, (_, now) => now.running], [0, (_, now) => now.waiting]],
    options: { least: 4 },
  },
  {
    title: "KV cache",
    hint: "Slots that requests hold, slots that the prefix cache keeps for later, and prompt tokens found there",
    series: [{ name: "held", color: "teal", fill: true }, { name: "kept", color: "blue" }, { name: "prefix hits", color: "violet" }],
    format: percent,
    draws: [
      [0, (_, now) => part(now.kvUsed, now.kvTotal)],
      [0, (_, now) => part(now.kvCached, now.kvTotal)],
      [QUANTILE, (from, now) => share(from, now, "cached", "prompt")],
    ],
    options: { least: 0.01, most: 1 },
  },
  { title: "Time to first token", hint: "From a request's arrival, over 15 s", series: percentiles, format: time, draws: quantiles("ttft"), options: { least: 0.001 } },
  { title: "Between tokens", hint: "Inter-token latency, over 15 s", series: percentiles, format: time, draws: quantiles("itl"), options: { least: 0.0001 } },
  { title: "Step", hint: "One forward step, from plan taken to tokens known, over 15 s", series: percentiles, format: time, draws: quantiles("step"), options: { least: 0.0001 } },
];

/** The figures on top: heading, value, and what stands below it. */
const TILES = [
  ["Output", (from, now) => [short(rate(from, now, "generated")), "tok/s", `${short(now.generated)} since the start`], RATE],
  ["Running", (_, now, info) => [short(now.running), `of ${short(info?.max_running_requests ?? null)}`, `${short(now.requests)} since the start`], 0],
  ["Waiting", (_, now) => [short(now.waiting), "", `${short(now.retractions)} retractions`], 0],
  ["KV cache", (_, now) => [percent(part(now.kvUsed, now.kvTotal)), "held", `${percent(part(now.kvCached, now.kvTotal))} kept for prefixes`], 0],
  ["Prefix hits", (from, now) => [percent(share(from, now, "cached", "prompt")), "", `${percent(now.prompt ? now.cached / now.prompt : null)} since the start`], MINUTE],
  ["First token", (from, now) => [time(quantile(from, now, "ttft", 0.5)), "p50", `p99 ${time(quantile(from, now, "ttft", 0.99))}`], MINUTE],
  ["Between tokens", (from, now) => [time(quantile(from, now, "itl", 0.5)), "p50", `p99 ${time(quantile(from, now, "itl", 0.99))}`], MINUTE],
];

export class Overview {
  constructor() {
    this.tiles = TILES.map(([title, value, span]) => {
      const [number, unit, below] = ["b", "span", "small"].map((tag) => make(tag));
      const tile = make("div", { class: "card tile" }, make("h3", {}, title), make("p", {}, number, unit), below);
      byId("tiles").append(tile);
      return { value, span, places: [number, unit, below] };
    });
    this.charts = CHARTS.map(({ title, hint, series, format, draws, options }) => {
      const chart = new LineChart(title, hint, series, format, options);
      byId("charts").append(chart.element);
      return { chart, draws };
    });
    this.ranks = new Ranks();
  }

  show(history, window, info) {
    const now = history.last;
    for (const { value, span, places } of this.tiles) {
      const texts = value(span === 0 ? undefined : history.before(span), now, info);
      places.forEach((place, at) => write(place, texts[at]));
    }
    for (const { chart, draws } of this.charts) {
      chart.set(draws.map(([span, value]) => history.series(window, span, value)), now.at, window);
    }
    this.ranks.show(history, info);
  }
}

/** Each rank's steps, and what belongs to each DP rank. */
class Ranks {
  constructor() {
    this.steps = make("div", { class: "card wide" });
    this.dp = make("div", { class: "card wide", id: "dp-ranks" });
    byId("ranks").append(this.steps, this.dp);
  }

  show(history, info) {
    const [from, now] = [history.before(QUANTILE), history.last];
    this.showSteps(from, now);
    const count = now.dp.running.size;
    this.dp.hidden = count < 2;
    if (count > 1) this.showDp(history.before(RATE), from, now, info);
  }

  showSteps(from, now) {
    const heading = make("h3", { title: "Mean of the last 15 s, by each rank's own clock" }, "Step time by rank");
    const steps = from ? grown(from, now, "steps") : 0;
    if (now.rankSeconds.size === 0 || !steps) {
      this.steps.replaceChildren(heading, empty("No step in the last 15 s."));
      return;
    }
    const ranks = [...grownBy(from, now, "rankSeconds")].map(([rank, seconds]) => [rank, seconds / steps]);
    const most = Math.max(...ranks.map(([, seconds]) => seconds));
    const rows = ranks.map(([rank, seconds]) => {
      const bar = make("span", { class: "fill" });
      bar.style.width = `${(100 * seconds) / most}%`;
      return make("tr", {}, make("th", { scope: "row" }, `Rank ${rank}`), make("td", { class: "meter" }, bar), make("td", { class: "number" }, time(seconds)));
    });
    this.steps.replaceChildren(heading, make("table", { class: "bars" }, make("tbody", {}, ...rows)));
  }

  showDp(before, from, now) {
    const head = ["DP rank", "Running", "Waiting", "Tok/s", "KV held", "KV kept", "Prefix hits", "Retractions"];
    const rows = [...now.dp.running.keys()].map((rank) => {
      const at = (key) => now.dp[key].get(rank);
      const more = (of, key) => (of ? at(key) - (of.dp[key].get(rank) ?? 0) : null);
      const perSecond = before ? (more(before, "generated") * 1000) / (now.at - before.at) : null;
      return [rank, short(at("running")), short(at("waiting")), short(perSecond), percent(part(at("kvUsed"), at("kvTotal"))),
        percent(part(at("kvCached"), at("kvTotal"))), percent(part(more(from, "cached"), more(from, "prompt"))), short(at("retractions"))];
    });
    const cell = (text, index) => make(index === 0 ? "th" : "td", { scope: index === 0 ? "row" : "", class: "number" }, String(text));
    this.dp.replaceChildren(
      make("h3", { title: "Tokens over 3 s, prefix hits over 15 s" }, "DP ranks"),
      make("div", { class: "scroll" }, make("table", {},
        make("thead", {}, make("tr", {}, ...head.map((text) => make("th", { scope: "col", class: "number" }, text)))),
        make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map(cell)))))),
    );
  }
}

/** What the server is, in a line. */
export function shape(info) {
  const { parallel, speculation, dtype, device, model: { quantization } } = info.config;
  const ranks = parallel.dp_size > 1 ? `${parallel.tp_size} ranks in ${parallel.dp_size} DP ranks` : `TP ${parallel.tp_size}`;
  const weights = quantization === "none" ? dtype : `${quantization}, ${dtype}`;
  const drafts = speculation.algorithm === null ? [] : [`${speculation.algorithm}${speculation.adaptive ? ` (${speculation.adaptive.policy})` : ""}`];
  return [`Lockstep ${info.version}`, ranks, device.kind.toUpperCase(), weights, ...drafts].join(" · ");
}
