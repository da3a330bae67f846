// Elements, and numbers as people read them.

/** The element with an id that the page has. */
export const byId = (id) => document.getElementById(id);

/** A new element. Properties are set as such; `class`, `aria-…`, `data-…` and the like as attributes. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** Writes a text where it has changed, so that selections and screen readers are left alone. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const isNumber = (value) => value !== null && value !== undefined && Number.isFinite(value);

/** A count or rate in few digits: 7, 12.3, 4.51k. */
export function short(value) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  for (const [limit, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (size >= limit) {
      const scaled = value / (unit === "k" ? 1e3 : limit);
      return scaled.toFixed(Math.abs(scaled) >= 100 ? 0 : 1) + unit;
    }
  }
  if (size >= 100 || Number.isInteger(value)) return Math.round(value).toLocaleString("en");
  return value.toFixed(size >= 10 ? 1 : 2);
}

/** Seconds as a time that fits: 850 µs, 12.3 ms, 4.5 s. */
export function time(seconds) {
  if (!isNumber(seconds)) return "–";
  const digits = (value) => value.toFixed(value >= 100 ? 0 : value >= 10 ? 1 : 2);
  if (seconds === 0) return "0 s";
  if (seconds < 1e-3) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${digits(seconds * 1e3)} ms`;
  return seconds < 120 ? `${digits(seconds)} s` : age(seconds);
}

/** Whole seconds as an age: 12 s, 3 min 05 s, 2 h 10 min. */
export function age(seconds) {
  const whole = Math.floor(seconds);
  const two = (value) => String(value).padStart(2, "0");
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  return `${Math.floor(whole / 3600)} h ${two(Math.floor(whole / 60) % 60)} min`;
}

/** A share as a percentage. */
export function percent(share) {
  if (!isNumber(share)) return "–";
  const value = share * 100;
  return `${value.toFixed(value > 0 && value < 9.95 ? 1 : 0)} %`;
}

/** What a table or a chart says where it has nothing to show. */
export const empty = (text) => make("p", { class: "empty" }, text);

/** A button that asks once more before it does something: for what others feel. */
export function careful(label, again, act) {
  const button = make("button", { type: "button", class: "danger" }, label);
  let waits = null;
  const rest = () => {
    clearTimeout(waits);
    waits = null;
    button.classList.remove("sure");
    write(button, label);
  };
  button.addEventListener("click", () => {
    if (waits !== null) {
      rest();
      act(button);
      return;
    }
    button.classList.add("sure");
    write(button, again);
    waits = setTimeout(rest, 4000);
  });
  return button;
}
