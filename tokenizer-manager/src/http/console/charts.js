// Charts on canvas: lines over time, and which depths were run when.

import { make, write } from "./page.js";

const LEFT = 54;
const BOTTOM = 20;
const TOP = 8;
const RIGHT = 4;

/** A colour of the style sheet, as it is now: dark and light have their own. */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** The largest label of an axis from 0: 1, 2, 2.5 or 5 times a power of ten, at least `value`. */
function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 2.5, 5, 10].find((step) => step * power >= value * 0.999);
}

/** Seconds ago, for an axis. */
function ago(seconds) {
  if (seconds === 0) return "now";
  return seconds < 60 ? `${seconds} s` : `${seconds / 60} min`;
}

/** What all charts have: a heading, a legend with values, a canvas that fits its place. */
class Chart {
  window = 60;
  now = 0;
  pointed = null;

  constructor(title, hint, height) {
    this.legend = make("ul", { class: "legend" });
    this.canvas = make("canvas", { role: "img", height });
    this.heightOf = height;
    this.title = title;
    const heading = make("h3", { title: hint }, title);
    this.element = make("figure", { class: "card chart" }, make("figcaption", {}, heading, this.legend), this.canvas);
    new ResizeObserver(() => this.draw()).observe(this.element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    const point = (event) => {
      this.pointed = event === null ? null : event.offsetX;
      this.draw();
    };
    this.canvas.addEventListener("pointermove", point);
    this.canvas.addEventListener("pointerleave", () => point(null));
  }

  x(at) {
    return LEFT + this.width * (1 - (this.now - at) / (this.window * 1000));
  }

  /** An empty canvas of the right size, for the screen's own dots; `null` while it is not shown. */
  begin() {
    const width = this.element.clientWidth - 32;
    if (width <= 0) return null;
    const ratio = devicePixelRatio || 1;
    this.canvas.width = width * ratio;
    this.canvas.height = this.heightOf * ratio;
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${this.heightOf}px`;
    this.width = width - LEFT - RIGHT;
    this.height = this.heightOf - TOP - BOTTOM;
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    return context;
  }

  timeAxis(context) {
    context.fillStyle = colour("muted");
    const step = { 60: 15, 300: 60, 900: 180 }[this.window];
    for (let back = 0; back < this.window; back += step) {
      context.textAlign = back === 0 ? "right" : "center";
      context.fillText(ago(back), this.x(this.now - back * 1000), this.heightOf - 8);
    }
  }

  /** The point of time under the pointer. */
  pointedAt() {
    if (this.pointed === null || this.pointed < LEFT) return null;
    return this.now - (1 - (this.pointed - LEFT) / this.width) * this.window * 1000;
  }

  label(texts) {
    this.canvas.setAttribute("aria-label", `${this.title}: ${texts.join(", ")}`);
  }
}

/** The point of a series that is nearest to a time. */
function nearest(points, at) {
  const distance = (point) => Math.abs(point.at - at);
  return points.reduce((best, point) => (best && distance(best) <= distance(point) ? best : point), null);
}

/** One or more series over time. A series has a name, a colour's name and perhaps `fill`. */
export class LineChart extends Chart {
  points = [];

  constructor(title, hint, series, format, { height = 150, least = 1, most = Infinity } = {}) {
    super(title, hint, height);
    Object.assign(this, { series, format, least, most });
    this.values = series.map(({ name, color }) => {
      const value = make("b", {}, "–");
      this.legend.append(make("li", { class: `c-${color}` }, name, " ", value));
      return value;
    });
  }

  /** Points of each series: a time in milliseconds, and a value or `null`. */
  set(points, now, window) {
    Object.assign(this, { points, now, window });
    this.draw();
  }

  draw() {
    const at = this.pointedAt();
    const shown = this.points.map((points) => (at === null ? points.at(-1) : nearest(points, at)));
    const texts = this.series.map((_, index) => this.format(shown[index]?.value ?? null));
    this.values.forEach((value, index) => write(value, texts[index]));
    this.label(this.series.map(({ name }, index) => `${name} ${texts[index]}`));
    const context = this.begin();
    if (context === null) return;
    const values = this.points.flat().flatMap(({ value }) => (value === null ? [] : [value]));
    const top = Math.min(this.most, ceiling(Math.max(this.least, ...values)));
    this.grid(context, top);
    this.timeAxis(context);
    this.points.forEach((points, index) => this.line(context, points, this.series[index], top));
    if (values.length === 0) {
      context.fillStyle = colour("muted");
      context.textAlign = "center";
      context.fillText("Nothing yet", LEFT + this.width / 2, TOP + this.height / 2);
    }
    if (at !== null && shown[0]) {
      context.strokeStyle = colour("muted");
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(this.x(shown[0].at), TOP);
      context.lineTo(this.x(shown[0].at), TOP + this.height);
      context.stroke();
    }
  }

  y(value, top) {
    return TOP + this.height * (1 - Math.min(value / top, 1));
  }

  grid(context, top) {
    context.lineWidth = 1;
    for (const part of [0, 0.5, 1]) {
      const y = Math.round(this.y(part * top, top)) + 0.5;
      context.strokeStyle = colour("line");
      context.beginPath();
      context.moveTo(LEFT, y);
      context.lineTo(LEFT + this.width, y);
      context.stroke();
      context.fillStyle = colour("muted");
      context.textAlign = "right";
      context.fillText(this.format(part * top), LEFT - 6, y);
    }
  }

  line(context, points, { color, fill }, top) {
    context.strokeStyle = colour(color);
    context.fillStyle = colour(color);
    context.lineWidth = 1.75;
    context.lineJoin = "round";
    // What is not known is a gap, and no line.
    for (const run of runs(points)) {
      const place = ({ at, value }) => [this.x(at), this.y(value, top)];
      context.beginPath();
      run.forEach((point) => context.lineTo(...place(point)));
      if (run.length === 1) context.arc(...place(run[0]), 1, 0, 7);
      context.stroke();
      if (!fill) continue;
      context.lineTo(this.x(run.at(-1).at), this.y(0, top));
      context.lineTo(this.x(run[0].at), this.y(0, top));
      context.globalAlpha = 0.14;
      context.fill();
      context.globalAlpha = 1;
    }
  }
}

/** Points between which nothing is missing. */
function runs(points) {
  const all = [[]];
  for (const point of points) {
    if (point.value === null) all.push([]);
    else all.at(-1).push(point);
  }
  return all.filter((run) => run.length > 0);
}

/** How much of the steps ran at each depth, over time, and how often the depth changed. */
export class DepthChart extends Chart {
  columns = [];
  depths = [];

  constructor(title, hint) {
    super(title, hint, 210);
    this.value = make("li", {});
    this.legend.append(this.value);
  }

  /** Columns have `from` and `at` in milliseconds, `steps` by depth, and `switches`. */
  set(columns, depths, now, window) {
    Object.assign(this, { columns, depths, now, window });
    this.draw();
  }

  draw() {
    const at = this.pointedAt();
    const ran = this.columns.filter((column) => column.total > 0);
    const shown = at === null ? ran.at(-1) : nearest(this.columns, at);
    write(this.value, shown && shown.total > 0 ? told(shown) : "No step that decodes");
    this.label([this.value.textContent]);
    const context = this.begin();
    if (context === null) return;
    const below = 34;
    const rows = Math.max(this.depths.length, 1);
    const each = (this.height - below) / rows;
    const y = (row) => TOP + (rows - 1 - row) * each;
    context.textAlign = "right";
    this.depths.forEach((depth, row) => {
      context.fillStyle = colour("muted");
      context.fillText(depth, LEFT - 8, y(row) + each / 2);
      context.fillStyle = colour("soft");
      context.fillRect(LEFT, y(row) + 1, this.width, each - 2);
    });
    context.fillStyle = colour("muted");
    context.fillText("switches", LEFT - 8, TOP + this.height - 11);
    this.timeAxis(context);
    const most = Math.max(1, ...this.columns.map(({ switches }) => switches));
    for (const { from, at, steps, total, switches } of this.columns) {
      const left = Math.max(this.x(from), LEFT);
      const width = Math.max(this.x(at) - left + 0.5, 1);
      context.fillStyle = colour("teal");
      this.depths.forEach((depth, row) => {
        const part = total > 0 ? (steps.get(depth) ?? 0) / total : 0;
        if (part <= 0) return;
        context.globalAlpha = 0.18 + 0.82 * part;
        context.fillRect(left, y(row) + 1, width, each - 2);
      });
      context.globalAlpha = 1;
      context.fillStyle = colour("amber");
      const height = (switches / most) * 22;
      context.fillRect(left, TOP + this.height - height, Math.max(width - 0.5, 1), height);
    }
    if (this.columns.every(({ total }) => total === 0)) {
      context.fillStyle = colour("muted");
      context.textAlign = "center";
      context.fillText("Nothing yet", LEFT + this.width / 2, TOP + (this.height - below) / 2);
    }
  }
}

/** A column in words. */
function told({ steps, total, switches }) {
  const parts = [...steps].filter(([, count]) => count > 0).sort((a, b) => b[1] - a[1]);
  const some = parts.slice(0, 3).map(([depth, count]) => `depth ${depth}: ${Math.round((100 * count) / total)} %`);
  return `${some.join(", ")} of ${total === 1 ? "1 step" : `${total} steps`} · ${switches === 1 ? "1 switch" : `${switches} switches`}`;
}
