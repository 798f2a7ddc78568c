// The tokens of a canvas after k events, and how a token is shown. Nothing here needs a page: tests run it in node.
"use strict";

// A change knows which change held its position before, so that a step back is as cheap as a step forward.
// Events may still come: `push` takes one more, `finish` says that none will. A text may end before all masks are written;
// those that are left vanish at its end.
function makePlayer(recording, mask) {
  const events = [];
  const position = [], token = [], prob = [], tops = [], event = [], before = [], last = [];
  const first = [0]; // the changes of event k are first[k] .. first[k + 1] - 1
  const length = [recording.canvas.length]; // positions after k events
  const left = [0]; // masks after k events
  const held = recording.canvas.slice();
  const given = [], seen = [];
  const holder = []; // the change that holds a position; none: the first canvas does
  let at = 0, done = recording.done === true, over = false; // over: at the end of a finished text
  for (const id of held) left[0] += id === mask;
  for (const [start, end] of recording.given) for (let p = start; p < end; p++) given[p] = true;

  function push(one) {
    const k = events.push(one) - 1, size = one.length ?? held.length;
    left.push(left[k] + size - held.length);
    while (held.length < size) held.push(mask);
    length.push(size);
    for (const [p, id, chance, others] of one.changes) {
      before.push(last[p] ?? -1);
      last[p] = position.length;
      left[k + 1] += (id === mask) - (held[p] === mask);
      held[p] = id;
      position.push(p); token.push(id); prob.push(chance); tops.push(others ?? null); event.push(k);
    }
    first.push(position.length);
  }
  recording.events.forEach(push);

  const holds = (p) => holder[p] ?? -1;
  const tokenOf = (p, change) => (change >= 0 ? token[change] : recording.canvas[p] ?? mask);

  // Go to the canvas after k events; returns the positions that may look different.
  function seek(k) {
    k = Math.max(0, Math.min(events.length, k));
    const touched = [], from = length[at], to = length[k];
    const touch = (p) => { if (!seen[p]) { seen[p] = true; touched.push(p); } };
    for (; at < k; at++)
      for (let c = first[at]; c < first[at + 1]; c++) { holder[position[c]] = c; touch(position[c]); }
    for (; at > k; at--)
      for (let c = first[at] - 1; c >= first[at - 1]; c--) { holder[position[c]] = before[c]; touch(position[c]); }
    for (let p = Math.min(from, to); p < Math.max(from, to); p++) touch(p);
    if (over !== (done && at === events.length)) {
      over = !over;
      if (left[events.length]) for (let p = 0; p < held.length; p++) if (held[p] === mask) touch(p);
    }
    for (const p of touched) seen[p] = false;
    return touched;
  }

  return {
    events, left, length, seek, push,
    finish: () => { done = true; },
    masks: () => (over ? 0 : left[at]), // that will still be written
    get size() { return held.length; },
    at: () => at,
    token: (p) => tokenOf(p, holds(p)),
    finally: (p) => held[p],
    canvas: () => Array.from({ length: length[at] }, (_, p) => tokenOf(p, holds(p))),
    exists: (p) => p < length[at] && !(over && held[p] === mask),
    given: (p) => given[p] === true && holds(p) < 0,
    // The change that holds a position now: null where the first canvas does.
    change: (p) => {
      const c = holds(p);
      return c < 0 ? null : { token: token[c], prob: prob[c], tops: tops[c], event: event[c] };
    },
    // Every change of a position, the first one first.
    history: (p) => {
      const changes = [];
      for (let c = last[p] ?? -1; c >= 0; c = before[c]) changes.unshift({ token: token[c], event: event[c] });
      return changes;
    },
    // The block that is written next, [start, end); null where a text is not written in blocks, or is written.
    block: () => events[at - 1]?.block ?? null,
    // Positions that event k changed.
    changed: (k) => position.slice(first[k], first[k + 1]),
    // Mean probability of what event k wrote; null where it wrote nothing.
    confidence: (k) => {
      let sum = 0, n = 0;
      for (let c = first[k]; c < first[k + 1]; c++) if (token[c] !== mask) { sum += prob[c]; n++; }
      return n ? sum / n : null;
    },
  };
}

const BINS = 6;
const CONFIDENCE = [0.05, 0.2, 0.4, 0.65, 0.9]; // where one bin of confidence ends and the next begins
const orderBin = (event, events) => Math.min(BINS - 1, Math.floor((event / Math.max(1, events)) * BINS));
const confidenceBin = (prob) => CONFIDENCE.filter((edge) => prob >= edge).length;

// A token cut into what is plain text and what has to be made visible: [kind, text]. Bytes come as ⟨e2 82⟩.
const HIDDEN = /( |\u00a0)|(\t)|(\r\n|\n|\r)|([\p{Cc}\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]|⟨[0-9a-f]{2}(?: [0-9a-f]{2})*⟩)/u;
function visible(piece) {
  const parts = [];
  const cut = piece.split(HIDDEN); // text, then the four groups, then text ...
  for (let i = 0; i < cut.length; i += 5) {
    if (cut[i]) parts.push(["text", cut[i]]);
    if (i + 1 === cut.length) break;
    const [space, tab, line, code] = cut.slice(i + 1, i + 5);
    if (space) parts.push(["space", space]);
    else if (tab) parts.push(["tab", tab]);
    else if (line) parts.push(["line", "\n"]);
    else parts.push(["code", code[0] === "⟨" ? code : `⟨u+${code.codePointAt(0).toString(16)}⟩`]);
  }
  return parts.length ? parts : [["code", "⟨⟩"]];
}

// Tokens of a byte-level vocabulary may hold parts of characters, which come as ⟨d0⟩. Neighbours that make a whole
// character together are shown as that character, at the token that begins it; "" is all that is left of the others.
const PART = /⟨([0-9a-f]{2}(?: [0-9a-f]{2})*)⟩/;
const hasPart = (piece) => PART.test(piece);
const HEX = new Map(Array.from({ length: 256 }, (_, byte) => [byte, byte.toString(16).padStart(2, "0")]));
const strict = typeof TextDecoder === "undefined" ? null : new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

// What each of the pieces shows; null is a mask, and nothing is joined across it.
function joined(pieces) {
  const shown = pieces.map((piece) => (piece === null ? null : []));
  const items = []; // { p, text } or { p, byte }, in order; a mask is { p, text: null }
  pieces.forEach((piece, p) => {
    if (piece === null || !hasPart(piece)) return void items.push({ p, text: piece });
    piece.split(PART).forEach((part, i) => {
      if (i % 2) for (const hex of part.split(" ")) items.push({ p, byte: parseInt(hex, 16) });
      else if (part) items.push({ p, text: part });
    });
  });
  for (let i = 0; i < items.length; ) {
    const { p, text, byte } = items[i];
    if (byte === undefined) { shown[p]?.push(text); i++; continue; }
    const size = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc2 ? 2 : 1;
    const bytes = items.slice(i, i + size).map((item) => item.byte);
    let character = null;
    if (size > 1 && bytes.length === size && !bytes.includes(undefined)) {
      try { character = strict.decode(Uint8Array.from(bytes)); } catch { /* not a character */ }
    }
    if (character === null) { shown[p].push(byte); i++; continue; }
    shown[p].push(character);
    i += size;
  }
  return shown.map((parts) => (parts === null ? null : spelled(parts)));
}

// Text with bytes in it: ⟨d0 bf⟩.
function spelled(parts) {
  let text = "", open = false;
  for (const part of parts) {
    if (typeof part === "number") { text += `${open ? " " : "⟨"}${HEX.get(part)}`; open = true; continue; }
    text += `${open ? "⟩" : ""}${part}`;
    open = false;
  }
  return text + (open ? "⟩" : "");
}

if (typeof module !== "undefined") module.exports = { makePlayer, visible, joined, orderBin, confidenceBin };
