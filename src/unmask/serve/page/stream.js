// Requests to the server: JSON, and events as they arrive. Only `ask` uses fetch; tests run the rest in node.

// Parses a text/event-stream, wherever its chunks are cut: feed(text) returns [{event, data}].
export function eventParser() {
  let rest = "", lines = [];
  function line(text, events) {
    if (text) return void lines.push(text);
    let event = "message";
    const data = [];
    for (const field of lines) {
      const colon = field.indexOf(":");
      if (!colon) continue; // a comment, which keeps the connection alive
      const name = colon < 0 ? field : field.slice(0, colon), value = colon < 0 ? "" : field.slice(colon + 1).replace(/^ /, "");
      if (name === "event") event = value;
      else if (name === "data") data.push(value);
    }
    lines = [];
    if (data.length) events.push({ event, data: data.join("\n") });
  }
  return function feed(text) {
    const events = [];
    rest += text;
    for (let cut; (cut = /\r\n|\n|\r(?!$)/.exec(rest)); ) {
      line(rest.slice(0, cut.index), events);
      rest = rest.slice(cut.index + cut[0].length);
    }
    return events;
  };
}

export class Refused extends Error {
  constructor(message, status, code, param) {
    super(message);
    Object.assign(this, { status, code, param });
  }
}

let key = "";
export const useKey = (text) => { key = text.trim(); };

async function ask(path, body, signal) {
  const headers = { ...(body ? { "Content-Type": "application/json" } : {}), ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  let answer;
  try {
    answer = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The server does not answer. Is it still running?", 0);
  }
  if (answer.ok) return answer;
  let error = {};
  try { error = (await answer.json())?.error ?? {}; } catch { /* not JSON */ }
  let said = error.message ?? "";
  const wait = answer.headers.get("Retry-After");
  if (answer.status === 429) said ||= `The server is busy${wait ? `; try again in ${wait} s` : ""}.`;
  throw new Refused(said || `The server refused the request (${answer.status}).`, answer.status, error.code, error.param);
}

export const getJson = async (path) => (await ask(path)).json();
export const getText = async (path) => (await ask(path)).text();
export const postJson = async (path, body, signal) => (await ask(path, body, signal)).json();

// POST, and `take(event, data)` for each event of the answer. A stream without an end event is an error.
export async function postEvents(path, body, take, signal) {
  const answer = await ask(path, body, signal);
  const reader = answer.body.getReader(), decoder = new TextDecoder(), feed = eventParser();
  const broken = (error) => {
    if (error?.name === "AbortError") throw error;
    throw new Refused("The connection to the server was lost; what has arrived is kept.", 0);
  };
  for (let ended = false; ; ) {
    const { value, done } = await reader.read().catch(broken);
    for (const { event, data } of feed(done ? "\n\n" : decoder.decode(value, { stream: true }))) {
      const known = JSON.parse(data);
      if (event === "error") throw new Refused(known.error?.message ?? "The server stopped.", 500);
      take(event, known);
      ended ||= event === "end";
    }
    if (done) return ended ? undefined : broken();
  }
}
