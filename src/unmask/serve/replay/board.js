// A canvas of tokens on a page, the card of a token, the timeline, the legend: what the replay and the live page share.
"use strict";

const make = (tag, className, ...children) => {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
};
const percent = (p) => (p >= 0.9995 ? "100 %" : p >= 0.0995 ? `${(100 * p).toFixed(0)} %` : `${(100 * p).toPrecision(2)} %`);
const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
const SVG = "http://www.w3.org/2000/svg";
const SPELLED = { space: "s", tab: "t", line: "n", code: "u" };
const BLANK = "\u2003\u2002\u200b"; // a line may break after a mask
const REST = "\u200a"; // a token whose character is shown by the one before it

// A piece of text as nodes: what cannot be seen is made visible.
const spellPiece = (piece) => visible(piece).map(([kind, text]) => (kind === "text" ? text : make("i", SPELLED[kind], text)));

// What a step did, in words: the first part is the most important.
function sentenceOf(player) {
  const at = player.at(), event = player.events[at - 1];
  const left = player.masks(), all = plural(player.length[at], "token");
  if (!event) return ["start", `${all}, ${plural(left, "mask")}`];
  const time = event.t === null || event.t === undefined ? [] : [`t = ${event.t.toFixed(3)}`];
  const block = event.block ? [`block ${event.block[0] + 1}–${event.block[1]}`] : [];
  return [`step ${event.step + 1}`, ...time, ...block, plural(event.calls, "call"), left ? `${plural(left, "mask")} left` : "all written"];
}

const REACH = 3; // a character has at most four bytes, so that it begins at most three tokens before its last one

// Moving in time touches only the tokens that differ. `words`: {mask, special: Set of ids, piece(id), name(id)?};
// name gives a class of its own to a token (the bases of DNA).
function makeBoard(canvas, words) {
  const board = {};
  let player = null, total = () => 0;
  let tokens = [], shown = []; // elements, and the token whose text each of them holds
  let fresh = []; // positions of the last event
  let block = [0, 0]; // of the text that is being written, [start, end)
  let settled = true; // masks are as wide as their final tokens; a live canvas does not know these yet

  const spell = (id) => (words.special.has(id) ? [make("i", "u", words.piece(id))] : spellPiece(words.piece(id)));
  const parts = new Map(); // id -> whether it holds a part of a character
  function partial(id) {
    if (!parts.has(id)) parts.set(id, !words.special.has(id) && hasPart(words.piece(id)));
    return parts.get(id);
  }

  // What a position shows, with the tokens beside it where these hold the rest of its character.
  function display(p, at) {
    const id = at(p);
    if (!partial(id)) return words.piece(id);
    const from = Math.max(0, p - REACH), ids = Array.from({ length: Math.min(player.size, p + REACH + 1) - from }, (_, i) => at(from + i));
    return joined(ids.map((one) => (one === words.mask || words.special.has(one) ? null : words.piece(one))))[p - from];
  }

  // A mask is as wide as the token that will replace it in the end, so that the text does not jump. So is a part of a
  // character whose other parts are still masked.
  function write(p) {
    const element = tokens[p], id = player.token(p), masked = id === words.mask;
    const now = masked ? null : display(p, player.token), last = player.finally(p);
    const half = !masked && settled && last === id && hasPart(now) && now !== display(p, player.finally);
    const wanted = !masked && !half ? id : settled ? last : words.mask;
    const text = wanted === words.mask ? null : wanted === id && !half ? now : display(p, player.finally);
    if (shown[p]?.wanted !== wanted || shown[p].text !== text) {
      const nodes = wanted === words.mask ? [BLANK] : words.special.has(wanted) ? spell(wanted) : text === "" ? [REST] : spellPiece(text);
      element.firstChild.replaceChildren(...nodes);
      shown[p] = { wanted, text };
    }
    let name = half ? "k half" : "k";
    if (!player.exists(p)) name += " x";
    else if (masked) name += " m";
    else if (player.given(p)) name += " g";
    else {
      const change = player.change(p);
      if (change) name += ` o${orderBin(change.event, Math.max(total(), player.events.length))} c${confidenceBin(change.prob)}`;
    }
    if (!masked && words.name) name += words.name(id);
    if (p >= block[0] && p < block[1] && !player.given(p)) name += " w";
    element.className = name;
  }

  // New positions of a canvas that has grown.
  function grow() {
    const added = document.createDocumentFragment();
    for (let p = tokens.length; p < player.size; p++) {
      const element = make("span", "k", make("span"));
      element.p = p;
      element.board = board;
      tokens.push(element);
      write(p);
      added.append(element);
    }
    if (added.firstChild) canvas.append(added);
  }

  // `expected()`: events in total, as far as known; `known`: whether the final tokens are known.
  function open(opened, expected = () => 0, known = true) {
    player = opened; total = expected; settled = known;
    fresh = []; shown = []; tokens = []; block = [0, 0];
    canvas.replaceChildren();
    grow();
    if (tokens.length) tokens[0].tabIndex = 0;
    letters();
  }

  function letters() {
    const sizes = tokens.map((_, p) => (words.special.has(player.finally(p)) ? 0 : words.piece(player.finally(p)).replace(/⟨[^⟩]*⟩/g, "x").length)).filter(Boolean);
    if (sizes.length) canvas.classList.toggle("letters", sizes.reduce((a, b) => a + b, 0) / sizes.length < 1.2);
  }

  // Positions, and those beside them whose characters they complete or break up.
  function around(positions) {
    const all = new Set(positions);
    for (const q of positions)
      for (let p = Math.max(0, q - REACH); p <= Math.min(tokens.length - 1, q + REACH); p++)
        if (p !== q && partial(player.token(p))) all.add(p);
    return all;
  }

  function show(k, lively) {
    grow();
    const touched = player.seek(k), last = block;
    block = player.block() ?? [0, 0];
    if (`${last}` !== `${block}`) for (const [start, end] of [last, block]) for (let p = start; p < end; p++) touched.push(p);
    for (const p of around([...fresh, ...touched])) write(p);
    const at = player.at();
    fresh = at ? player.changed(at - 1) : [];
    if (at < player.events.length || lively) for (const p of fresh) tokens[p].classList.add("f");
  }

  // All is known: masks become as wide as their final tokens.
  function settle() {
    if (settled || !player) return;
    settled = true;
    grow();
    tokens.forEach((_, p) => write(p));
    letters();
  }

  // The character that a part belongs to: this token shows it, or one of those before it.
  function character(p) {
    for (let q = p; q >= Math.max(0, p - REACH); q--) {
      if (!partial(player.token(q))) return "";
      const text = display(q, player.token);
      if (text !== "") return hasPart(text) ? "" : text.trim();
    }
    return "";
  }

  function bar(id, prob, chosen) {
    const row = make("li", chosen ? "chosen" : "", make("span", "word", ...spell(id)), make("span", "bar"), make("span", "number", percent(prob)));
    row.children[1].style.setProperty("--p", prob);
    return row;
  }

  function facts(p) {
    const change = player.change(p), id = player.token(p), n = player.events.length;
    const rows = [], history = player.history(p);
    if (id !== words.mask && change) {
      const event = player.events[change.event];
      rows.push(["step", event.step + 1], ["order", `${change.event + 1} of ${n}`]);
      if (event.t !== null && event.t !== undefined) rows.push(["time t", event.t.toFixed(3)]);
    } else if (id === words.mask && settled) {
      const next = history.find((later) => later.event >= player.at() && later.token !== words.mask);
      if (next) rows.push(["written in step", player.events[next.event].step + 1]);
    }
    const whole = id !== words.mask && partial(id) ? character(p) : "";
    if (whole) rows.push(["part of", whole]);
    rows.push(["position", `${p + 1} of ${player.length[player.at()]}`]);
    const again = history.filter((past) => past.token === words.mask && past.event < player.at()).length;
    if (again) rows.push(["masked again", again === 1 ? "once" : `${again} times`]);
    return rows;
  }

  // What the card of a token says.
  function fill(card, p) {
    const id = player.token(p), change = player.change(p), masked = id === words.mask;
    const kind = masked ? "mask" : player.given(p) ? "given" : change ? percent(change.prob) : "given";
    const head = make("p", "head", make("span", masked ? "word blank" : "word", ...(masked ? ["\u2003\u2003"] : spell(id))), make("b", "", kind));
    const list = make("ul");
    if (change && !masked) {
      const rows = [...(change.tops ?? [])].sort((a, b) => b[1] - a[1]);
      if (!rows.some(([other]) => other === id)) rows.push([id, change.prob]);
      for (const [other, prob] of rows) list.append(bar(other, prob, other === id));
    }
    const table = make("p", "facts", ...facts(p).map(([name, value]) => make("span", "", `${name} `, make("b", "", value))));
    card.replaceChildren(head, ...(list.children.length ? [list] : []), table);
  }

  function describe(p) {
    const id = player.token(p);
    const kind = player.given(p) ? ["given"] : player.change(p) && id !== words.mask ? [`probability ${percent(player.change(p).prob)}`] : [];
    return [id === words.mask ? "mask" : JSON.stringify(display(p, player.token) || words.piece(id)), ...kind, ...facts(p).map((row) => row.join(" "))].join(", ");
  }

  return Object.assign(board, {
    canvas, open, show, settle, fill, describe,
    get player() { return player; },
    element: (p) => tokens[p],
    exists: (p) => p >= 0 && p < tokens.length && player.exists(p),
    count: () => player.length[player.at()],
  });
}

// -- the card that follows the pointer, a tap or the focus; `area` holds the canvases, `floor` is what it must not cover --

function makeCard(card, area, floor, say) {
  let pointed = null, pinned = null, lit = null; // tokens (elements)

  const tokenAt = (event) => event.target.closest?.(".k[class]") ?? null;
  const inArea = (element) => (element?.board && area.contains(element) ? element : null);
  function point() {
    const element = [pointed, pinned].find((one) => one && one.isConnected && one.board.exists(one.p)) ?? null;
    lit?.classList.remove("a");
    lit = element;
    card.hidden = !element;
    if (!element) return;
    element.classList.add("a");
    element.board.fill(card, element.p);
    const box = element.getClientRects()[0] ?? element.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = card;
    const top = floor.getBoundingClientRect().top, bottom = floor.hidden || !top ? innerHeight : top, below = box.bottom + 8;
    const up = below + height < bottom || box.top - 8 - height < 0 ? below : box.top - 8 - height;
    card.style.left = `${Math.max(8, Math.min(innerWidth - width - 8, box.left + box.width / 2 - width / 2))}px`;
    card.style.top = `${Math.max(8, Math.min(up, bottom - height - 8))}px`;
  }
  const clear = () => { pointed = pinned = null; point(); };

  area.addEventListener("pointerover", (event) => { if (event.pointerType === "mouse") { pointed = event.buttons ? null : inArea(tokenAt(event)); point(); } });
  area.addEventListener("pointerleave", () => { pointed = null; point(); });
  area.addEventListener("mousedown", (event) => { if (inArea(tokenAt(event)) && event.detail > 1) event.preventDefault(); });
  document.addEventListener("click", (event) => {
    if (card.contains(event.target) || floor.contains(event.target)) return;
    if (getSelection()?.isCollapsed === false) return; // the end of a selection, not a click
    const element = inArea(tokenAt(event));
    pinned = element === pinned ? null : element;
    point();
  });
  addEventListener("scroll", point, { passive: true });
  addEventListener("resize", point);
  area.addEventListener("focusin", (event) => {
    const element = inArea(tokenAt(event));
    if (!element || !event.target.matches(":focus-visible")) return;
    pointed = element;
    point();
    say(element.board.describe(element.p));
  });
  area.addEventListener("focusout", () => { pointed = null; point(); });

  // Arrow keys walk from token to token while one of them has the focus; Escape leaves.
  function walk(event) {
    const element = inArea(document.activeElement?.closest?.(".k"));
    const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
    if (!element || !(event.key in steps)) return false;
    const board = element.board, p = Math.max(0, Math.min(board.count() - 1, element.p + steps[event.key]));
    for (const other of board.canvas.querySelectorAll("[tabindex]")) other.removeAttribute("tabindex");
    board.element(p).tabIndex = 0;
    board.element(p).focus();
    return true;
  }
  function leave() {
    if (area.contains(document.activeElement)) document.activeElement.blur();
    clear();
  }
  return { point, clear, walk, leave, shown: () => lit };
}

// -- the timeline: masks left after each event, in the colours of the tokens ----------------------------------------------

function makeChart(chart) {
  let columns = 0, n = 0;
  function draw(player, events = player.events.length) {
    const most = Math.max(1, ...player.left);
    n = events;
    columns = Math.min(n, 240);
    const bars = document.createElementNS(SVG, "g");
    for (let i = 0; i < columns; i++) {
      const k = Math.floor((i * n) / columns), bar = document.createElementNS(SVG, "rect");
      if (k >= player.events.length) break;
      const height = Math.max(0.02, player.left[k] / most);
      for (const [name, value] of Object.entries({ x: i, y: 1 - height, width: columns > 120 ? 1 : 0.86, height }))
        bar.setAttribute(name, value);
      const sure = player.confidence(k);
      bar.setAttribute("class", `o${orderBin(k, n)}${sure === null ? "" : ` c${confidenceBin(sure)}`}`);
      bars.append(bar);
    }
    const past = bars.cloneNode(true), clip = document.createElementNS(SVG, "clipPath");
    const window = document.createElementNS(SVG, "rect");
    for (const [name, value] of Object.entries({ x: 0, y: 0, width: 0, height: 1 })) window.setAttribute(name, value);
    clip.id = "past";
    clip.append(window);
    bars.setAttribute("class", "future");
    past.setAttribute("clip-path", "url(#past)");
    chart.setAttribute("viewBox", `0 0 ${Math.max(1, columns)} 1`);
    chart.replaceChildren(bars, past, clip);
  }
  const at = (k) => chart.lastChild?.firstChild?.setAttribute("width", columns ? (k / Math.max(1, n)) * columns : 0);
  return { draw, at };
}

// -- the wordmark is uncovered as the text is; what the colours mean -------------------------------------------------------

function uncover(written) {
  document.querySelectorAll(".mark b").forEach((letter, i) => letter.classList.toggle("m", written < (i + 1) / 4));
}

const ENDS = { order: ["first", "last"], confidence: ["unsure", "sure"] };
function legendOf(view) {
  const keys = [make("span", "k m", make("span", "", "\u2003")), make("span", "k g", make("span", "", "given"))];
  const parts = [make("span", "item", keys[0], "mask"), make("span", "item", keys[1])];
  if (view in ENDS) {
    const scale = Array.from({ length: 6 }, (_, i) => make("span", `k o${i} c${i}`, make("span", "", "\u2002\u2002")));
    parts.push(make("span", "item scale", ENDS[view][0], ...scale, ENDS[view][1]));
  }
  return parts;
}
