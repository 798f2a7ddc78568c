// The live page: a form, a stage, a player. Everything that a model wrote enters the page as text, never as HTML.
import { Conversation } from "./chat.js";
import { fit, hasGap, makeEditor } from "./editor.js";
import { fillShell, save, traceOf } from "./export.js";
import { makeFilm } from "./film.js";
import { whole, withGap } from "./rewriting.js";
import { readScore, showScore } from "./score.js";
import { fromHash, learn, Side, toHash } from "./settings.js";
import { Run, Stage } from "./stage.js";
import { getJson, getText, postEvents, postJson, useKey } from "./stream.js";

const $ = (id) => document.getElementById(id);
const say = (text) => { $("live").textContent = text; };
const chosen = (name) => document.querySelector(`[name=${name}]:checked`).value;
const anySeed = () => Math.floor(Math.random() * 1e6);
const TOPS = 5;
const FIELD = { write: "prompt", fill: "gaps", score: "scored", chat: "message" };
const VERB = { write: "Write", fill: "Fill", score: "Score", chat: "Send" };

let models = [], sides = [], stopper = null, generation = 0;
let unfolded = false; // whether the settings were shown without being asked for

const card = makeCard($("card"), $("main"), $("player"), say);
const stage = new Stage($("stage"), {
  card, say, uncover,
  chart: makeChart($("chart")),
  place: (...how) => transport.place(...how),
});
const transport = makeTransport({
  say, ready: () => stage.ready() && !$("player").hidden, at: stage.at, count: stage.count, growing: stage.growing, show: stage.show, rate: stage.rate,
  sentence: stage.sentence, leave: () => { card.leave(); hideRewrite(); },
  keys: (event) => card.walk(event) || rewriteKey(event),
});
const conversation = new Conversation($("turns"), { say, uncover });
const editor = makeEditor($("gaps"), $("backdrop"), {
  kind: () => sides[0]?.facts.kind, say, changed: () => {},
  count: async (text) => (await postJson("/v1/tokenize", { model: sides[0]?.model?.id, text })).count,
});

// -- modes and views ----------------------------------------------------------------------------------------------------

function mode(name) {
  document.body.dataset.mode = name;
  document.querySelector(`[name=mode][value=${name}]`).checked = true;
  for (const box of document.querySelectorAll("[data-for]")) box.hidden = box.dataset.for !== name;
  $("run").firstElementChild.textContent = VERB[name];
  const scoring = name === "score", chatting = name === "chat", staged = !scoring && !chatting;
  $("scores").hidden = !scoring;
  $("actions").hidden = chatting;
  $("stage").hidden = $("views").hidden = $("compareBox").hidden = $("dice").hidden = !staged;
  $("legend").hidden = !staged;
  if (!staged) uncover(1);
  $("player").hidden = $("keep").hidden = !staged || !stage.ready();
  for (const side of sides) { side.box.classList.toggle("filling", name === "fill"); side.chat(chatting); }
  compare($("compare").checked);
  told();
  $("sides").classList.toggle("scoring", scoring);
  if (name === "fill") editor.draw();
  for (const area of document.querySelectorAll("textarea")) if (area.offsetParent) fit(area);
  card.clear();
  examples();
}

function view(name) {
  document.body.dataset.view = name;
  document.querySelector(`[name=view][value=${name}]`).checked = true;
  const parts = legendOf(name);
  if (name === "bases") parts.push(...[..."ACGT"].map((base) => make("span", `k b${base}`, base)));
  $("legend").replaceChildren(...parts);
}

function compare(on) {
  $("compare").checked = on;
  const two = on && !["score", "chat"].includes(chosen("mode"));
  sides[1].box.hidden = !two;
  $("sides").classList.toggle("two", two);
  offerBases();
}

// The settings in one line, which is all that is seen of them while they are folded, and by which law tokens are drawn.
function told() {
  const scoring = chosen("mode") === "score", advised = Object.entries(sides[0].recommended());
  $("settingsLine").textContent = scoring ? sides[0].model?.id ?? "" : active().map((side) => ($("compare").checked ? `${side.name}: ` : "") + side.summary()).join("  |  ");
  $("lawBox").hidden = scoring || !advised.length;
  $("lawName").title = `Recommended by the model: ${advised.map((pair) => pair.join(" ")).join(", ")}`;
  const law = sides[0].law();
  document.querySelector(`[name=law][value=${law}]`).checked = true;
  $("customBox").hidden = law !== "custom";
}

const active = () => ($("compare").checked && chosen("mode") !== "chat" ? sides : sides.slice(0, 1));

// -- running --------------------------------------------------------------------------------------------------------------

function fail(error) {
  $("error").hidden = !error;
  $("error").textContent = error ? error.message ?? String(error) : "";
  const pattern = error?.code === "impossible" && /^patterns\[(\d+)\]$/.exec(error.param ?? "");
  editor.impossible(pattern ? Number(pattern[1]) : null);
  if (error?.status === 401) { $("keyBox").hidden = false; $("settings").open = true; $("key").focus(); }
}

function busy(on) {
  if (!on && document.activeElement === $("halt")) $("run").focus();
  if (!on && document.activeElement === $("hush")) $("message").focus();
  $("halt").hidden = $("hush").hidden = !on;
  document.body.classList.toggle("busy", on);
}

function content() {
  if (chosen("mode") === "fill") return { text: $("gaps").value };
  const body = {};
  if ($("prompt").value) body.prompt = $("prompt").value;
  if ($("suffix").value) body.suffix = $("suffix").value;
  return body;
}

async function run() {
  fail(null);
  hideRewrite();
  if (!sides.length) return begin();
  await editor.settled(); // a gap may still be counted
  if (!active().every((side) => side.valid(chosen("mode")))) return;
  if (chosen("mode") === "chat") return chat();
  if (chosen("mode") === "score") return score();
  if (chosen("mode") === "fill" && !hasGap($("gaps").value)) {
    $("gaps").focus();
    return fail("There is no gap yet: select words and press Ctrl+M, or write {{3}}.");
  }
  if (unfolded) $("settings").open = unfolded = false;
  stopper?.abort();
  const stop = (stopper = new AbortController()), current = ++generation;
  for (const { inputs } of active()) if (inputs.seed.value === "") inputs.seed.value = anySeed(); // so that the link contains it
  const what = content(), n = Number(sides[0].inputs.n.value) || 1;
  const runs = active().map((side) => {
    const body = { ...side.request(), n, ...what, tops: TOPS };
    if (what.text !== undefined) delete body.length; // the text and its gaps say how long it is
    const { tops, ...protocol } = body;
    const label = $("compare").checked ? side.name : "";
    return Object.assign(new Run(label, side.summary(), protocol, { dna: side.dna, n }), { request: body });
  });
  told();
  history.replaceState(null, "", link());
  stage.open(runs);
  offerBases();
  $("player").hidden = false;
  $("keep").hidden = true; // until something has arrived
  busy(true);
  say("writing");
  const results = await Promise.allSettled(runs.map((one) => stream(one, stop, current)));
  if (current !== generation) return;
  busy(false);
  const ends = results.filter((result) => result.status === "rejected").map((result) => result.reason);
  const wrong = ends.find((reason) => reason.name !== "AbortError");
  if (wrong) fail(wrong);
  else if (ends.length) say("stopped");
  if (!stage.ready()) { $("player").hidden = $("keep").hidden = true; stage.open([]); return; }
  stage.changed();
  if (stage.at() < 0.15 * stage.count() || stage.at() >= stage.count()) stage.settle();
  if (!ends.length) say(`done, ${stage.sequences.map(({ text }) => text).join(" — ").slice(0, 400)}`);
}

// The first canvas has arrived: on a small screen it is scrolled into view.
function begun() {
  $("keep").hidden = false;
  transport.play();
  if ($("stage").getBoundingClientRect().top > 0.6 * innerHeight) document.querySelector(".look").scrollIntoView({ block: "start" });
}

async function stream(one, stop, current) {
  try {
    await postEvents("/v1/diffusion", one.request, (event, data) => {
      if (current !== generation) return;
      if (event === "start") {
        one.start(data, data.steps ?? one.request.steps);
        if ($("keep").hidden) begun();
      } else if (event === "step") one.step(data);
      else if (event === "done") one.done(data);
      stage.changed();
    }, stop.signal);
    one.finish();
  } catch (error) {
    one.finish(error.name === "AbortError" ? "stopped" : "failed");
    throw error;
  }
}

async function score() {
  const text = $("scored").value;
  if (!text.trim()) { $("scored").focus(); return fail("Paste a text to score first."); }
  stopper?.abort();
  const stop = (stopper = new AbortController());
  busy(true);
  history.replaceState(null, "", link());
  try {
    const side = sides[0], scored = readScore(await postJson("/v1/score", { model: side.model?.id, text }, stop.signal));
    showScore($("scores"), scored, { dna: side.dna }, side.facts.default_sampler === "left-to-right");
    say(`perplexity ${Math.exp(scored.nats / Math.max(1, scored.count)).toFixed(2)}, ${plural(scored.count, "token")}`);
  } catch (error) {
    if (error.name !== "AbortError") fail(error);
  } finally {
    if (stopper === stop) busy(false);
  }
}

async function chat() {
  const area = $("message"), text = area.value;
  if (conversation.busy) return;
  if (!text.trim()) return area.focus();
  const { n, length, seed, ...settings } = sides[0].request();
  if (length) settings.max_tokens = length;
  if (seed !== undefined) settings.seed = seed + conversation.answers; // each answer has its own
  const { messages } = conversation;
  area.value = "";
  fit(area);
  busy(true);
  say("writing");
  try {
    await conversation.send(text, $("system").value.trim(), settings);
  } catch (error) {
    if (!area.value && messages === conversation.messages) area.value = text; // to be sent again
    fit(area);
    if (error.name === "AbortError") say("stopped");
    else fail(error);
  } finally {
    busy(false);
  }
}

// -- rewriting part of a result -----------------------------------------------------------------------------------

let part = null; // {sequence, run, from, to}

function selectedPart() {
  const selection = getSelection();
  if (!selection || selection.isCollapsed || !selection.rangeCount) return null;
  const ends = [selection.anchorNode, selection.focusNode].map((node) => (node.nodeType === 1 ? node : node.parentElement)?.closest(".k"));
  if (!ends[0]?.board || ends[0].board !== ends[1]?.board) return null;
  return partOf(ends[0].board, Math.min(ends[0].p, ends[1].p), Math.max(ends[0].p, ends[1].p));
}

function partOf(board, from, to) {
  for (const one of stage.runs) {
    const sequence = one.sequences.find((each) => each?.board === board);
    if (sequence?.done) return { run: one, sequence, from, to };
  }
  return null;
}

function offerRewrite() {
  part = selectedPart();
  const button = $("rewrite");
  button.hidden = !part;
  if (!part) return;
  button.textContent = `Rewrite ${plural(part.to - part.from + 1, "token")}`;
  const box = getSelection().getRangeAt(0).getBoundingClientRect();
  button.style.left = `${Math.max(8, Math.min(innerWidth - button.offsetWidth - 8, box.left + box.width / 2 - button.offsetWidth / 2))}px`;
  button.style.top = `${Math.max(8, box.top - button.offsetHeight - 8)}px`;
}
const hideRewrite = () => { $("rewrite").hidden = true; part = null; };

// The text with a gap in place of the tokens; special tokens are left out.
function rewrite({ run: one, sequence, from, to }) {
  const { words } = one, { player } = sequence;
  const pieces = Array.from({ length: player.size }, (_, p) => { const id = player.finally(p); return words.special.has(id) ? "" : words.piece(id); });
  const { before, after, size } = withGap(pieces, from, to);
  getSelection()?.removeAllRanges();
  hideRewrite();
  if (hasGap(before, false) || hasGap(after, false)) return fail("The text itself contains {{…}} or [MASK], which would be read as a gap.");
  const text = `${before}{{${size}}}${after}`;
  mode("fill");
  editor.set(/^\s/.test(sequence.text) ? text : text.trimStart()); // some tokenizers begin every text with a space
  for (const { inputs } of sides) inputs.seed.value = Number(inputs.seed.value) + 1;
  $("gaps").focus();
  run();
}

function rewriteKey(event) {
  const token = card.shown();
  if (event.key.toLowerCase() !== "r" || !token || event.target.matches("textarea, input, select")) return false;
  const target = partOf(token.board, token.p, token.p);
  if (target) rewrite(target);
  return Boolean(target);
}

// -- links, files, examples ---------------------------------------------------------------------------------------------------

function link() {
  const name = chosen("mode"), texts = name === "write" ? { text: $("prompt").value, suffix: $("suffix").value } : { text: $(FIELD[name]).value };
  return toHash({ mode: name, texts, a: sides[0].values(), b: $("compare").checked ? sides[1].values() : null, view: chosen("view") });
}

function follow(hash) {
  const { a, b, rest, empty } = fromHash(hash);
  if (empty) return;
  const first = { model: models[0]?.id, length: "", seed: "0", n: "1" }; // nothing of what stood here before
  sides[0].start({ ...first, ...a });
  const name = Object.hasOwn(FIELD, rest.mode ?? "") && (rest.mode !== "chat" || sides[0].facts.chat_template) ? rest.mode : "write";
  sides[1].start({ ...first, ...b });
  $("compare").checked = rest.compare === "1";
  for (const field of Object.values(FIELD)) $(field).value = "";
  $(FIELD[name]).value = rest.text ?? "";
  $("suffix").value = rest.suffix ?? "";
  if (rest.suffix) $("suffix").closest("details").open = true;
  if ([...document.querySelectorAll("[name=view]")].some((radio) => radio.value === rest.view)) view(rest.view);
  mode(name);
  about();
}

async function copy(text, button) {
  const said = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch { // without https the clipboard is not available
    const area = make("textarea", "away", text);
    document.body.append(area);
    area.select();
    button.textContent = document.execCommand("copy") ? "Copied" : "Copying is not allowed";
    area.remove();
    button.focus();
  }
  say(button.textContent);
  setTimeout(() => { button.textContent = said; }, 1500);
}

// Examples for a model: those that it recommends, and some that suit every model of text or DNA.
function tries({ kind, recommended = {}, samplers = [], infills, likelihood }) {
  const { infill, prompts = [] } = recommended;
  if (kind === "dna") return [
    ...(infills ? [{ name: "Fill a motif", mode: "fill", gaps: infill || "ACGT{{8}}TATAAA{{12}}ACGT" }] : []),
    { name: "From nothing", mode: "write", prompt: "" },
  ];
  const begin = prompts[0] ?? "Once upon a time, there was";
  return [
    ...(infills ? [{ name: "Gaps", mode: "fill", gaps: infill || "The {{2}} sat on the {{3}} and {{4}}." }] : []),
    { name: "Continue", mode: "write", prompt: begin },
    { name: "From nothing", mode: "write", prompt: "" },
    ...(samplers.length > 1 ? [{ name: "8 or 64 steps", mode: "write", prompt: begin, set: { steps: "8" }, b: { steps: "64" } }] : []),
    ...(samplers.length > 1 && samplers.includes("left-to-right") ? [{ name: "Two orders", mode: "write", prompt: begin, b: { sampler: "left-to-right" } }] : []),
    ...(likelihood ? [{ name: "Score", mode: "score", scored: "The cat sat on the refrigerator and sang." }] : []),
  ];
}

function take(one) {
  if (one.prompt !== undefined) { $("prompt").value = one.prompt; $("suffix").value = ""; }
  if (one.gaps !== undefined) $("gaps").value = one.gaps;
  if (one.scored !== undefined) $("scored").value = one.scored;
  sides[0].start(one.set);
  sides[0].fit();
  if (one.b) sides[1].set({ ...sides[0].values(), ...one.b });
  $("compare").checked = Boolean(one.b);
  mode(one.mode);
}

function examples() {
  $("examples").replaceChildren(...tries(sides[0]?.facts ?? {}).map((one) => {
    const button = make("button", "chip", one.name);
    button.type = "button";
    button.onclick = () => { take(one); run(); };
    return button;
  }));
}

// The view of bases is offered for DNA: the runs on the stage, or the settings for the next one.
function offerBases() {
  const dna = (stage.runs.length ? stage.runs : active()).some((one) => one.dna);
  $("basesBox").hidden = !dna;
  if (dna && chosen("view") === "order") view("bases");
  if (!dna && chosen("view") === "bases") view("order");
}

// Only models with a template chat.
function offerChat() {
  $("chatBox").hidden = !sides[0].facts.chat_template;
  if ($("chatBox").hidden && chosen("mode") === "chat") mode("write");
}

function about() {
  offerChat();
  const { method, parameters, length, kind, default_sampler: sampler, block_size: block } = sides[0].facts;
  const size = parameters >= 1e6 ? `${(parameters / 1e6).toFixed(parameters < 1e7 ? 1 : 0)}M parameters` : parameters ? `${(parameters / 1e3).toFixed(0)}k parameters` : "";
  $("about").textContent = [sides[0].model?.id, sampler === "left-to-right" ? "writes left to right" : block ? `blocks of ${block}` : method && method.toUpperCase(), size, length && `${length} ${kind === "dna" ? "bases" : "tokens"}`].filter(Boolean).join(" · ");
}

// -- wiring -----------------------------------------------------------------------------------------------------------------

$("form").addEventListener("submit", (event) => { event.preventDefault(); run(); });
for (const area of document.querySelectorAll("textarea")) {
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); run(); }
  });
  area.addEventListener("input", () => fit(area));
}
$("halt").onclick = () => stopper?.abort();
$("ask").addEventListener("submit", (event) => { event.preventDefault(); run(); });
$("hush").onclick = () => conversation.stop();
$("renew").onclick = () => { conversation.clear(); fail(null); $("message").focus(); say("a new conversation"); };
$("message").addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || !conversation.busy) return;
  event.stopPropagation(); // the focus stays
  conversation.stop();
});
$("dice").onclick = () => { const seed = anySeed(); for (const { inputs } of sides) inputs.seed.value = seed; run(); };
document.querySelector(".skip").onclick = (event) => { event.preventDefault(); $({ score: "scores", chat: "message" }[chosen("mode")] ?? "stage").focus(); }; // the address already holds the settings
$("makeGap").onmousedown = (event) => event.preventDefault(); // the selection stays
$("makeGap").onclick = () => editor.gap();
$("compare").onchange = () => {
  const on = $("compare").checked;
  if (on) sides[1].differ(sides[0]);
  if (on && !$("settings").open) { $("settings").open = true; unfolded = true; } // until it runs
  compare(on);
  told();
};
for (const radio of document.querySelectorAll("[name=law]")) radio.onchange = () => sides[0].follow(radio.value);
$("sides").addEventListener("input", () => told());
for (const radio of document.querySelectorAll("[name=mode]")) radio.onchange = () => mode(radio.value);
for (const radio of document.querySelectorAll("[name=view]")) radio.onchange = () => view(radio.value);
$("key").addEventListener("input", () => useKey($("key").value));
$("rewrite").onmousedown = (event) => event.preventDefault();
$("rewrite").onclick = () => part && rewrite(part);
document.addEventListener("selectionchange", () => { if (!document.body.classList.contains("busy")) offerRewrite(); });
addEventListener("scroll", () => { if (part) offerRewrite(); }, { passive: true });
addEventListener("hashchange", () => follow(location.hash));
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target.matches("textarea, input, select") || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  $(FIELD[chosen("mode")]).focus();
});
$("permalink").onclick = () => { history.replaceState(null, "", link()); copy(location.href, $("permalink")); };
const begunRuns = () => stage.runs.filter(({ words }) => words);
$("copyText").onclick = () => copy(begunRuns().flatMap((one) => one.texts().map(whole)).join("\n\n"), $("copyText"));
$("saveJson").onclick = () => save("trace.json", `${JSON.stringify(traceOf(begunRuns()))}\n`, "application/json");
$("saveGif").onclick = async () => {
  const button = $("saveGif"), said = button.textContent, k = stage.at();
  if (transport.playing()) transport.pause();
  stage.settle();
  button.disabled = true;
  button.textContent = "Recording …";
  document.body.classList.add("recording");
  try {
    save("unmask.gif", await makeFilm($("stage"), stage.count(), (step) => stage.show(step, false)), "image/gif");
    say("the film is saved");
  } catch (error) { fail(error); }
  document.body.classList.remove("recording");
  button.textContent = said;
  button.disabled = false;
  stage.show(k, false);
};
$("saveHtml").onclick = async () => {
  try {
    save("replay.html", fillShell(await getText("/page/replay.txt"), traceOf(begunRuns())), "text/html");
  } catch (error) { fail(error); }
};

async function begin() {
  try {
    models = (await getJson("/v1/models")).data;
  } catch (error) {
    return fail(error);
  }
  learn(models);
  sides = ["A", "B"].map((name) => new Side(name, models, (field) => { if (field === "model") { offerBases(); about(); examples(); } told(); }));
  $("sides").replaceChildren(...sides.map((side) => side.box));
  compare(false);
  view("order");
  offerBases();
  take(tries(sides[0].facts)[0]);
  follow(location.hash);
  about();
  fail(null);
  document.body.classList.add("ready");
}

begin();
