// What is asked of the server, with the keys that its reader typed.

/** The server's own root, also where a proxy serves it below a path. */
const ROOT = new URL(".", location.href);
/** How long an answer about figures may take, milliseconds. */
const PATIENCE = 8000;

const KEYS = { client: "lockstep-key", operator: "lockstep-operator-key" };

/** Whoever wants to know that a key is missing or wrong: (who, message). */
let onRefused = () => {};
export function whenRefused(listener) {
  onRefused = listener;
}

export const keys = {
  get: (who) => sessionStorage.getItem(KEYS[who]),
  set: (who, key) => sessionStorage.setItem(KEYS[who], key),
  forget: () => Object.values(KEYS).forEach((name) => sessionStorage.removeItem(name)),
  any: () => Object.values(KEYS).some((name) => sessionStorage.getItem(name) !== null),
};

/** A refusal: the HTTP status, and the server's message. */
export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function headers(who) {
  const key = (who === "operator" && keys.get("operator")) || keys.get("client") || keys.get("operator");
  return key === null ? {} : { Authorization: `Bearer ${key}` };
}

async function refusal(response, who, quiet) {
  let message = `${response.status} ${response.statusText}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // Not of this server, such as a proxy's page; its status says enough.
  }
  if (response.status === 401 && !quiet) onRefused(who, message);
  return new Refusal(response.status, message);
}

/** Asks, as a client or an operator; throws a `Refusal`, or `TypeError` where nobody answers.
 * What is `quiet` asks its reader for no key. */
export async function ask(path, { who = "client", body, signal, quiet = false } = {}) {
  const request = {
    method: body === undefined ? "GET" : "POST",
    headers: headers(who),
    cache: "no-store",
    credentials: "same-origin",
    redirect: "error",
    signal: signal ?? AbortSignal.timeout(PATIENCE),
  };
  if (body !== undefined) {
    request.body = JSON.stringify(body);
    request.headers["Content-Type"] = "application/json";
  }
  const response = await fetch(new URL(path, ROOT), request);
  if (!response.ok) throw await refusal(response, who, quiet);
  return response;
}

/** An answer in JSON. */
export const json = async (path, options) => (await ask(path, options)).json();

/** The data of a stream's events, one by one (Server-Sent Events, WHATWG HTML 9.2). */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const parts = rest.split(/\r?\n\r?\n/);
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split(/\r?\n/).filter((line) => line.startsWith("data:"));
      if (data.length > 0) yield data.map((line) => line.slice(5).trimStart()).join("\n");
    }
  }
}
