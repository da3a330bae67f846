// Prometheus' text format, and what the last minutes were like.

const PREFIX = "lockstep_";
const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

/** All series by their names, without the prefix. */
export function parse(text) {
  const all = new Map();
  for (const line of text.split("\n")) {
    const found = line.startsWith("#") ? null : LINE.exec(line);
    if (found === null) continue;
    const [, name, inside, value] = found;
    const labels = {};
    for (const [, key, text] of (inside ?? "").matchAll(LABEL)) labels[key] = text;
    const key = name.startsWith(PREFIX) ? name.slice(PREFIX.length) : name;
    if (!all.has(key)) all.set(key, []);
    all.get(key).push({ labels, value: Number(value) });
  }
  return all;
}

/** The sum of a metric over all of its labels; `null` where there is none. */
const sum = (all, name) => all.get(name)?.reduce((sum, one) => sum + one.value, 0) ?? null;

/** The values of a metric by one of its labels. */
function by(all, name, label) {
  const values = new Map();
  for (const one of all.get(name) ?? []) values.set(Number(one.labels[label]), one.value);
  return values;
}

/** A histogram over all of its labels: bounds, and how many were at most as large. */
function histogram(all, name) {
  const counts = new Map();
  for (const { labels, value } of all.get(`${name}_bucket`) ?? []) {
    const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
    counts.set(bound, (counts.get(bound) ?? 0) + value);
  }
  const bounds = [...counts.keys()].sort((a, b) => a - b);
  return { bounds, counts: bounds.map((bound) => counts.get(bound)) };
}

const TOTALS = {
  generated: "generated_tokens_total",
  prompt: "prompt_tokens_total",
  cached: "cached_tokens_total",
  requests: "requests_total",
  failed: "requests_failed_total",
  aborted: "requests_aborted_total",
  retractions: "retractions_total",
  steps: "steps_total",
  switches: "spec_depth_switches_total",
  verified: "spec_verify_steps_total",
  drafted: "spec_draft_tokens_total",
  accepted: "spec_accepted_tokens_total",
  predicted: "spec_predicted_seconds_total",
  measured: "spec_measured_seconds_total",
};
const GAUGES = {
  running: "num_requests_running",
  waiting: "num_requests_waiting",
  kvUsed: "kv_tokens_used",
  kvCached: "kv_tokens_cached",
  kvTotal: "kv_tokens_total",
  depth: "spec_depth",
  up: "scheduler_up",
};
const TIMES = {
  ttft: "time_to_first_token_seconds",
  itl: "inter_token_latency_seconds",
  step: "step_seconds",
};
const RANKS = {
  running: "dp_rank_num_requests_running",
  waiting: "dp_rank_num_requests_waiting",
  kvUsed: "dp_rank_kv_tokens_used",
  kvCached: "dp_rank_kv_tokens_cached",
  kvTotal: "dp_rank_kv_tokens_total",
  prompt: "dp_rank_prompt_tokens_total",
  cached: "dp_rank_cached_tokens_total",
  generated: "dp_rank_generated_tokens_total",
  retractions: "dp_rank_retractions_total",
};

const each = (names, get) => Object.fromEntries(Object.entries(names).map(([key, name]) => [key, get(name)]));

/** What the console needs of one answer of `/metrics`, at a time in milliseconds. */
export function sample(text, at) {
  const all = parse(text);
  return {
    at,
    ...each(TOTALS, (name) => sum(all, name)),
    ...each(GAUGES, (name) => sum(all, name)),
    ...each(TIMES, (name) => histogram(all, name)),
    depthSteps: by(all, "spec_depth_steps_total", "depth"),
    positionsProposed: by(all, "spec_proposed_total", "position"),
    positionsAccepted: by(all, "spec_accepted_total", "position"),
    rankSeconds: by(all, "rank_step_seconds_total", "rank"),
    dp: each(RANKS, (name) => by(all, name, "dp_rank")),
  };
}

/** What grew by how much between two samples; `null` where one does not know. */
export const grown = (from, to, key) => (from?.[key] == null || to?.[key] == null ? null : to[key] - from[key]);

/** The same by a label: of each that grew. */
export function grownBy(from, to, key) {
  const grown = new Map();
  for (const [label, value] of to?.[key] ?? []) grown.set(label, value - (from?.[key].get(label) ?? 0));
  return grown;
}

/** How much per second. */
export function rate(from, to, key) {
  const more = grown(from, to, key);
  return more === null || to.at <= from.at ? null : (more * 1000) / (to.at - from.at);
}

/** A part of what grew, such as hits of lookups; `null` where nothing did. */
export function share(from, to, part, whole) {
  const [of, all] = [grown(from, to, part), grown(from, to, whole)];
  return of === null || !all ? null : of / all;
}

/** A quantile of what a histogram counted between two samples, interpolated as
 * Prometheus does it; `null` where it counted nothing. */
export function quantile(from, to, key, q) {
  if (!from || !to) return null;
  const { bounds, counts } = to[key];
  const before = from[key].counts;
  const more = counts.map((count, at) => count - (before[at] ?? 0));
  const total = more.at(-1) ?? 0;
  if (total <= 0) return null;
  const rank = q * total;
  const at = more.findIndex((count) => count >= rank);
  const low = at > 0 ? bounds[at - 1] : 0;
  if (bounds[at] === Infinity) return low;
  const below = at > 0 ? more[at - 1] : 0;
  return low + ((bounds[at] - low) * (rank - below)) / Math.max(more[at] - below, 1e-9);
}

/** The samples of the last quarter of an hour. */
export class History {
  samples = [];
  #steps = 0;

  add(sample) {
    if (sample.steps !== null) {
      // An engine that began anew counts from zero: what was before is of another.
      if (sample.steps < this.#steps) this.samples = [];
      this.#steps = sample.steps;
    }
    this.samples.push(sample);
    const oldest = sample.at - 16 * 60 * 1000;
    while (this.samples[0].at < oldest) this.samples.shift();
  }

  get last() {
    return this.samples.at(-1);
  }

  /** The newest sample that is at least so much older than the one at `index`, or the first. */
  before(seconds, index = this.samples.length - 1) {
    if (index < 1) return undefined;
    const limit = this.samples[index].at - seconds * 1000 + 50;
    let at = index - 1;
    while (at > 0 && this.samples[at].at > limit) at -= 1;
    return this.samples[at];
  }

  /** Of each sample within the window: its time, and what `value` makes of it and one of `span` seconds earlier. */
  series(window, span, value) {
    const from = (this.last?.at ?? 0) - window * 1000;
    const points = [];
    this.samples.forEach((sample, index) => {
      if (sample.at < from) return;
      points.push({ at: sample.at, value: value(this.before(span, index), sample) });
    });
    return points;
  }
}
