// The infill editor: a text area whose gaps, {{3}}, are drawn as masks by a copy of the text behind it. A gap may carry a
// pattern, {{3:[a-z]+}}.

const GAP = /\{\{\s*(\d+)\s*(?:-\s*(\d+)\s*)?(?:\}\}|:([^]*?)\}\}(?!\}))/g;
// [MASK] is a gap, too, and so is ___ in a text without any other.
export const hasGap = (text, blanks = true) => text.search(GAP) >= 0 || text.includes("[MASK]") || (blanks && text.includes("___"));

// How many tokens a piece of text may have: letters of DNA and bytes are counted, words are estimated.
export function tokensIn(text, kind) {
  if (kind === "dna") return Math.max(1, text.replace(/\s/g, "").length);
  if (kind === "bytes") return Math.max(1, new TextEncoder().encode(text.trim()).length);
  const words = text.match(/[\p{L}\p{M}\p{N}]+|[^\s\p{L}\p{M}\p{N}]/gu) ?? [];
  return Math.max(1, words.reduce((sum, word) => sum + Math.max(1, Math.round(word.length / 7)), 0));
}

// The selection, widened to whole words and gaps and without the spaces around it; without one, the word at the cursor.
export function wordsAt(text, start, end, letters) {
  for (const found of text.matchAll(GAP)) {
    const [from, to] = [found.index, found.index + found[0].length];
    if (start < end && from < start && start < to) start = from;
    if (start < end && from < end && end < to) end = to;
  }
  if (letters) return [start, end];
  while (start < end && /\s/.test(text[start])) start++;
  while (start < end && /\s/.test(text[end - 1])) end--;
  const words = [...new Intl.Segmenter(undefined, { granularity: "word" }).segment(text)]
    .filter(({ isWordLike }) => isWordLike).map(({ index, segment }) => [index, index + segment.length]);
  if (start === end) return words.findLast(([from, to]) => from <= start && start <= to) ?? [start, end];
  for (const [from, to] of words) {
    if (from < start && start < to) start = from;
    if (from < end && end < to) end = to;
  }
  return [start, end];
}

// The gap around the cursor: [start, end, low, high, pattern], or null.
export function gapAt(text, at) {
  for (const found of text.matchAll(GAP)) {
    const end = found.index + found[0].length;
    if (found.index <= at && at <= end) return [found.index, end, Number(found[1]), found[2] && Number(found[2]), found[3]];
  }
  return null;
}

const TIMEOUT = 300; // milliseconds that a gap waits for the server to count its tokens

// How many tokens of `whole` a gap of one token replaces in `holed`: `count` asks the server for the tokens of a text. If
// it does not answer in time, the guess is used.
export async function tokensReplaced(whole, holed, count, guess) {
  const counted = Promise.all([count(whole), count(holed)]).then(([all, rest]) => Math.max(1, all - rest + 1));
  return Promise.race([counted, new Promise((late) => setTimeout(() => late(guess), TIMEOUT))]).catch(() => guess);
}

export function makeEditor(area, backdrop, { kind, say, changed, count }) {
  // As an edit by the browser, so that undo works.
  function replace(start, end, text) {
    area.focus();
    area.setSelectionRange(start, end);
    if (!document.execCommand?.("insertText", false, text)) area.setRangeText(text, start, end, "end");
    draw();
    changed();
  }

  let pending = Promise.resolve();
  const gap = () => { pending = makeGap(); return pending; };

  async function makeGap() {
    const { value, selectionStart: from, selectionEnd: to } = area;
    if (from === to && gapAt(value, from)) return;
    const counted = ["dna", "bytes"].includes(kind()); // a letter is a token
    const [start, end] = wordsAt(value, from, to, counted && from < to);
    const chosen = value.slice(start, end);
    if (!chosen.trim() && from === to && value.trim()) {
      replace(from, to, "{{3}}");
      return say("a gap of 3 tokens");
    }
    if (!chosen) return say("select words first");
    const inside = [...chosen.matchAll(GAP)].reduce((sum, found) => sum + Number(found[2] ?? found[1]), 0);
    const plain = chosen.replace(GAP, " ");
    let n = inside + (plain.trim() ? tokensIn(plain, kind()) : 0);
    if (!counted && !inside) n = await tokensReplaced(value, `${value.slice(0, start)}{{1}}${value.slice(end)}`, count, n);
    if (area.value !== value) return; // the text was edited in the meantime
    replace(start, end, `{{${n}}}`);
    say(`gap of ${n} token${n === 1 ? "" : "s"} instead of ${chosen}`);
  }

  function resize(by) {
    const found = gapAt(area.value, area.selectionStart);
    if (!found) return false;
    const [start, end, low, high, pattern] = found, size = Math.max(1, (high ?? low) + by);
    const length = high === undefined ? `${size}` : `${Math.min(low, size)}-${size}`;
    replace(start, end, `{{${length}${pattern === undefined ? "" : `:${pattern}`}}}`);
    area.setSelectionRange(start + 2, start + 2 + length.length);
    say(length + " tokens");
    return true;
  }

  let dead = -1; // which of the gaps with a pattern cannot be written, until the text is edited

  function draw() {
    const nodes = [];
    let last = 0, patterns = 0;
    for (const found of area.value.matchAll(GAP)) {
      const kind = found[3] !== undefined && patterns++ === dead ? "gap impossible" : "gap";
      nodes.push(area.value.slice(last, found.index), make("mark", kind, make("i", "", "{{"), make("b", "", found[0].slice(2, -2)), make("i", "", "}}")));
      last = found.index + found[0].length;
    }
    backdrop.replaceChildren(...nodes, area.value.slice(last) + "\u200b");
    fit(area);
    backdrop.scrollTop = area.scrollTop;
  }

  // Mark a gap as one that cannot be written; null: none.
  function impossible(number) {
    dead = number ?? -1;
    draw();
  }

  area.addEventListener("input", () => { dead = -1; draw(); changed(); });
  area.addEventListener("scroll", () => { backdrop.scrollTop = area.scrollTop; });
  area.addEventListener("keydown", (event) => {
    const m = event.code === "KeyM" || event.key.toLowerCase() === "m";
    if (m && (event.ctrlKey || event.altKey) && !event.shiftKey) { event.preventDefault(); gap(); }
    if (event.altKey && ["ArrowUp", "ArrowDown"].includes(event.key) && resize(event.key === "ArrowUp" ? 1 : -1)) event.preventDefault();
  });
  addEventListener("resize", draw);
  return { gap, draw, impossible, settled: () => pending, set: (text) => { area.value = text; draw(); changed(); } };
}

// As high as its text.
export function fit(area) {
  area.style.height = "auto";
  if (area.scrollHeight) area.style.height = `${Math.min(320, area.scrollHeight + 2)}px`;
}
