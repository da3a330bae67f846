// The page's parts, what they are told how often, and the keys.

import { ask, json, keys, whenRefused } from "./api.js";
import { Chat } from "./chat.js";
import { History, sample } from "./metrics.js";
import { Overview, shape } from "./overview.js";
import { byId, write } from "./page.js";
import { Requests } from "./requests.js";
import { Speculation } from "./speculation.js";

/** Between two looks at figures, milliseconds, and how many of them later the rest is looked at. */
const EVERY = 1000;
const SPECULATION = 5;
const INFO = 30;
const REQUESTS = 2;
const OPERATORS = "Operators may list and abort requests and pin the depth. Their key is that of --admin-api-key-file, or of --api-key-file where there is no other.";
const TABS = ["overview", "requests", "chat"];

const history = new History();
const overview = new Overview();
const requests = new Requests(() => login("operator", OPERATORS));
const chat = new Chat();
const speculation = new Speculation(() => void lookAtSpeculation());
let info = null;
let told = null;
let shown = 60;
let ticks = 0;
let tab = "overview";

function state(name, text) {
  byId("state").dataset.state = name;
  write(byId("state-text"), text);
}

async function lookAtInfo() {
  info = await json("server_info");
  write(byId("model"), info.served_model_name);
  write(byId("shape"), shape(info));
  document.title = `${info.served_model_name} · Lockstep`;
  chat.describe(info);
}

async function lookAtSpeculation() {
  told = await json("speculation").catch(() => told);
  if (history.last) show();
}

function show() {
  if (tab !== "overview" || document.hidden) return;
  overview.show(history, shown, info);
  speculation.show(history, shown, told);
}

/** One look at the server. */
async function look() {
  const turn = ticks;
  ticks += 1;
  if (info === null || turn % INFO === 0) await lookAtInfo();
  const text = await (await ask("metrics")).text();
  const now = sample(text, Date.now());
  history.add(now);
  const serves = now.up === 1;
  state(serves ? "good" : "bad", serves ? "Serving" : "No engine");
  const live = (now.running ?? 0) + (now.waiting ?? 0);
  byId("tab-count").hidden = live === 0;
  write(byId("tab-count"), String(live));
  if (turn % SPECULATION === 0) await lookAtSpeculation();
  if (tab === "requests" && turn % REQUESTS === 0) await requests.refresh();
  show();
}

async function run() {
  for (;;) {
    // Nobody sees a page in the background; what it missed are rates over a longer time.
    if (!document.hidden && !byId("login").open) {
      try {
        await look();
      } catch (error) {
        if (error.status === 401) state("bad", "Needs a key");
        else if (error.status !== undefined) state("bad", `Answered ${error.status}`);
        else state("bad", "Unreachable");
      }
    }
    await new Promise((wake) => setTimeout(wake, EVERY));
  }
}

function turnTo(name) {
  tab = TABS.includes(name) ? name : "overview";
  for (const one of TABS) {
    byId(one).hidden = one !== tab;
    if (one === tab) byId(`tab-${one}`).setAttribute("aria-current", "page");
    else byId(`tab-${one}`).removeAttribute("aria-current");
  }
  if (tab === "requests") void requests.refresh();
  if (tab === "chat") byId("chat-input").focus({ preventScroll: true });
  if (history.last) show();
}

/** Asks the reader for a key: a client's, or an operator's. */
function login(who, why) {
  const dialog = byId("login");
  if (dialog.open) return;
  dialog.dataset.who = who;
  write(byId("login-title"), who === "operator" ? "This asks for the operators' key" : "This server asks for a key");
  write(byId("login-why"), why);
  byId("login-forget").hidden = !keys.any();
  byId("login-key").value = "";
  byId("key-button").hidden = false;
  dialog.showModal();
}

function setUpKeys() {
  const dialog = byId("login");
  let declined = new Set();
  whenRefused((who, why) => {
    byId("key-button").hidden = false;
    if (!declined.has(who)) login(who, why);
  });
  dialog.addEventListener("cancel", () => declined.add(dialog.dataset.who));
  byId("login-cancel").addEventListener("click", () => {
    declined.add(dialog.dataset.who);
    dialog.close();
  });
  byId("login-forget").addEventListener("click", () => {
    keys.forget();
    location.reload();
  });
  byId("login-form").addEventListener("submit", (event) => {
    event.preventDefault();
    keys.set(dialog.dataset.who, byId("login-key").value.trim());
    declined = new Set();
    info = null;
    dialog.close();
    if (tab === "requests") void requests.refresh();
  });
  byId("key-button").hidden = !keys.any();
  byId("key-button").addEventListener("click", () => login(tab === "requests" ? "operator" : "client", OPERATORS));
}

byId("window").addEventListener("change", (event) => {
  shown = Number(event.target.value);
  if (history.last) show();
});
addEventListener("hashchange", () => turnTo(location.hash.slice(1)));
document.addEventListener("visibilitychange", () => history.last && show());
setUpKeys();
turnTo(location.hash.slice(1));
void run();
