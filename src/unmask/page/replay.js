// The replay page: a trace on a canvas of tokens. Moving in time touches only the tokens that differ.
(() => {

  const trace = JSON.parse(document.getElementById("trace").textContent);
  const special = new Set(trace.special);
  const piece = (id) => trace.pieces[id] ?? `⟨${id}⟩`;
  const $ = (id) => document.getElementById(id);
  const canvas = $("canvas"), card = $("card"), slider = $("slider"), chart = $("chart");
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const percent = (p) => (p >= 0.9995 ? "100 %" : p >= 0.0995 ? `${(100 * p).toFixed(0)} %` : `${(100 * p).toPrecision(2)} %`);
  const SVG = "http://www.w3.org/2000/svg";

  let player, course = -1; // what is shown
  let tokens = [], shown = []; // elements, and the token whose text each of them holds
  let fresh = []; // positions of the last event
  let pointed = -1, pinned = -1, lit = null; // tokens with the card, and the one that is marked
  let playing = false, clock = 0, then = 0;

  const make = (tag, className, ...children) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    element.append(...children);
    return element;
  };

  // -- tokens -------------------------------------------------------------------------------------------------------

  const CLASS = { space: "s", tab: "t", line: "n", code: "u" };
  function spell(id) {
    if (special.has(id)) return [make("i", "u", piece(id))];
    return visible(piece(id)).map(([kind, text]) => (kind === "text" ? text : make("i", CLASS[kind], text)));
  }

  // A mask keeps the room of the token that will stand there in the end: nothing jumps while one reads.
  function write(p) {
    const element = tokens[p], id = player.token(p), masked = id === trace.mask;
    const wanted = masked ? player.finally(p) : id;
    if (shown[p] !== wanted) {
      element.firstChild.replaceChildren(...(wanted === trace.mask ? ["\u2003\u2002"] : spell(wanted)));
      shown[p] = wanted;
    }
    let name = "k";
    if (!player.exists(p)) name += " x";
    else if (masked) name += " m";
    else if (player.given(p)) name += " g";
    else {
      const change = player.change(p);
      if (change) name += ` o${orderBin(change.event, player.events.length)} c${confidenceBin(change.prob)}`;
    }
    element.className = name;
  }

  function show(k) {
    const touched = player.seek(k);
    for (const p of fresh) write(p);
    for (const p of touched) write(p);
    const at = player.at();
    fresh = at ? player.changed(at - 1) : [];
    if (at < player.events.length || playing) for (const p of fresh) tokens[p].classList.add("f");
    status();
    slider.value = at;
    chart.lastChild?.firstChild?.setAttribute("width", columns ? (at / Math.max(1, player.events.length)) * columns : 0);
    progress();
    point();
  }

  const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
  function sentence() {
    const at = player.at(), event = player.events[at - 1];
    const left = player.left[at], all = plural(player.length[at], "token");
    if (!event) return ["start", `${all}, ${plural(left, "mask")}`];
    const time = event.t === null ? [] : [`t = ${event.t.toFixed(3)}`];
    return [`step ${event.step + 1}`, ...time, plural(event.calls, "call"), left ? `${plural(left, "mask")} left` : "all written"];
  }
  function status() {
    const [first, ...rest] = sentence();
    $("status").replaceChildren(make("b", "", first), ...rest.map((text) => make("span", "", text)));
    slider.setAttribute("aria-valuetext", [first, ...rest].join(", "));
  }
  const announce = () => { $("live").textContent = sentence().join(", "); };

  // The wordmark is uncovered as the text is.
  function progress() {
    const left = player.left[player.at()], written = 1 - left / Math.max(1, left, player.left[0]);
    document.querySelectorAll(".mark b").forEach((letter, i) => letter.classList.toggle("m", written < (i + 1) / 4));
  }

  // -- one sequence -------------------------------------------------------------------------------------------------

  function open(index, share) {
    course = index;
    player = makePlayer(trace.sequences[index], trace.mask);
    fresh = []; shown = []; tokens = []; pointed = pinned = -1;
    for (let p = 0; p < player.size; p++) {
      const element = make("span", "k", make("span"));
      element.p = p;
      tokens.push(element);
      write(p);
    }
    canvas.replaceChildren(...tokens);
    if (tokens.length) tokens[0].tabIndex = 0;
    const lengths = tokens.map((_, p) => (special.has(player.finally(p)) ? 0 : piece(player.finally(p)).replace(/⟨[^⟩]*⟩/g, "x").length)).filter(Boolean);
    const letters = lengths.length && lengths.reduce((a, b) => a + b, 0) / lengths.length < 1.2;
    canvas.classList.toggle("letters", Boolean(letters));
    slider.max = player.events.length;
    draw();
    $("text").textContent = trace.sequences[index].text;
    for (const tab of $("tabs").children) {
      const own = tab.id === `tab${index}`;
      tab.setAttribute("aria-selected", own);
      tab.tabIndex = own ? 0 : -1;
      if (own) tab.scrollIntoView({ block: "nearest", inline: "nearest" });
    }
    show(Math.round(share * player.events.length));
  }

  function tabs() {
    const box = $("tabs");
    trace.sequences.forEach((sequence, i) => {
      const button = make("button", "", `${i + 1}`);
      if (sequence.name) button.append(make("small", "", sequence.name));
      button.type = "button";
      button.id = `tab${i}`;
      button.setAttribute("role", "tab");
      button.setAttribute("aria-controls", "canvas");
      button.setAttribute("aria-label", `Sequence ${i + 1} ${sequence.name}`);
      button.onclick = () => choose(i);
      box.append(button);
    });
    box.hidden = trace.sequences.length < 2;
    if (!box.hidden) canvas.setAttribute("role", "tabpanel");
    box.onkeydown = (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move) return;
      choose((course + move + trace.sequences.length) % trace.sequences.length);
      $(`tab${course}`).focus();
      event.preventDefault();
      event.stopPropagation();
    };
  }

  function choose(i) {
    const share = player.events.length ? player.at() / player.events.length : 0;
    open(i, share);
    clock = player.at();
    announce();
  }

  // -- the timeline: masks left after each event, in the colours of the tokens --------------------------------------

  let columns = 0;
  function draw() {
    const n = player.events.length, most = Math.max(1, ...player.left);
    columns = Math.min(n, 240);
    const bars = document.createElementNS(SVG, "g");
    for (let i = 0; i < columns; i++) {
      const k = Math.floor((i * n) / columns), bar = document.createElementNS(SVG, "rect");
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

  // -- the card of a token ------------------------------------------------------------------------------------------

  function bar(id, prob, chosen) {
    const row = make("li", chosen ? "chosen" : "", make("span", "word", ...spell(id)), make("span", "bar"), make("span", "number", percent(prob)));
    row.children[1].style.setProperty("--p", prob);
    return row;
  }

  function facts(p) {
    const change = player.change(p), id = player.token(p), n = player.events.length;
    const rows = [], history = player.history(p);
    if (id !== trace.mask && change) {
      const event = player.events[change.event];
      rows.push(["step", event.step + 1], ["order", `${change.event + 1} of ${n}`]);
      if (event.t !== null) rows.push(["time t", event.t.toFixed(3)]);
    } else if (id === trace.mask) {
      const next = history.find((later) => later.event >= player.at() && later.token !== trace.mask);
      if (next) rows.push(["comes in step", player.events[next.event].step + 1]);
    }
    rows.push(["position", `${p + 1} of ${player.length[player.at()]}`]);
    const again = history.filter((past) => past.token === trace.mask && past.event < player.at()).length;
    if (again) rows.push(["masked again", again === 1 ? "once" : `${again} times`]);
    return rows;
  }

  function fill(p) {
    const id = player.token(p), change = player.change(p), masked = id === trace.mask;
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

  function point() {
    const p = pointed >= 0 ? pointed : pinned;
    card.hidden = p < 0 || !player.exists(p);
    lit?.classList.remove("a");
    lit = card.hidden ? null : tokens[p];
    if (!lit) return;
    lit.classList.add("a");
    fill(p);
    card.classList.toggle("pinned", p === pinned);
    const box = tokens[p].getClientRects()[0] ?? tokens[p].getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = card;
    const bottom = $("player").getBoundingClientRect().top, below = box.bottom + 8;
    const top = below + height < bottom || box.top - 8 - height < 0 ? below : box.top - 8 - height;
    card.style.left = `${Math.max(8, Math.min(innerWidth - width - 8, box.left + box.width / 2 - width / 2))}px`;
    card.style.top = `${Math.max(8, Math.min(top, bottom - height - 8))}px`;
  }

  const tokenAt = (event) => event.target.closest?.(".k")?.p ?? -1;
  canvas.addEventListener("pointerover", (event) => { if (event.pointerType === "mouse") { pointed = tokenAt(event); point(); } });
  canvas.addEventListener("pointerleave", () => { pointed = -1; point(); });
  canvas.addEventListener("mousedown", (event) => { if (tokenAt(event) >= 0 && event.detail > 1) event.preventDefault(); });
  document.addEventListener("click", (event) => {
    if (card.contains(event.target) || $("player").contains(event.target)) return;
    const p = tokenAt(event);
    pinned = p === pinned ? -1 : p;
    point();
  });
  addEventListener("scroll", point, { passive: true });
  addEventListener("resize", point);

  canvas.addEventListener("focusin", (event) => { if (event.target.matches(":focus-visible")) { pointed = tokenAt(event); point(); describe(); } });
  canvas.addEventListener("focusout", () => { pointed = -1; point(); });
  const describe = () => {
    const p = pointed, id = p < 0 ? -1 : player.token(p);
    const rows = p < 0 ? [] : facts(p).map((row) => row.join(" "));
    const kind = player.given(p) ? ["given"] : player.change(p) && id !== trace.mask ? [`probability ${percent(player.change(p).prob)}`] : [];
    if (p >= 0) $("live").textContent = [id === trace.mask ? "mask" : JSON.stringify(piece(id)), ...kind, ...rows].join(", ");
  };

  // -- playing ------------------------------------------------------------------------------------------------------

  const perSecond = () => Number($("speed").value) * Math.max(2.5, Math.min(30, player.events.length / 10));
  function frame(now) {
    if (!playing) return;
    clock += ((now - then) / 1000) * perSecond();
    then = now;
    const k = Math.min(player.events.length, Math.floor(clock));
    if (k !== player.at()) show(k);
    if (k === player.events.length) return pause();
    requestAnimationFrame(frame);
  }
  function play() {
    if (!player.events.length) return;
    if (player.at() === player.events.length) show(0);
    playing = true;
    clock = player.at();
    then = performance.now();
    button();
    requestAnimationFrame(frame);
  }
  function pause() {
    playing = false;
    button();
    show(player.at()); // what is finished has no fresh tokens
    announce();
  }
  function button() {
    document.body.classList.toggle("playing", playing);
    $("play").setAttribute("aria-label", playing ? "Pause" : "Play");
  }
  const go = (k) => { if (playing) pause(); show(k); announce(); };

  const COMMANDS = {
    ArrowLeft: () => go(player.at() - 1),
    ArrowRight: () => go(player.at() + 1),
    Home: () => go(0),
    End: () => go(player.events.length),
    " ": () => (playing ? pause() : play()),
    ArrowUp: () => faster(1),
    ArrowDown: () => faster(-1),
    Escape: () => { pinned = pointed = -1; if (canvas.contains(document.activeElement)) document.activeElement.blur(); point(); },
  };
  function faster(by) {
    const box = $("speed");
    box.selectedIndex = Math.max(0, Math.min(box.options.length - 1, box.selectedIndex + by));
    $("live").textContent = `speed ${box.selectedOptions[0].textContent}`;
  }
  function walk(to) {
    const p = Math.max(0, Math.min(player.length[player.at()] - 1, to));
    for (const element of canvas.querySelectorAll("[tabindex]")) element.removeAttribute("tabindex");
    tokens[p].tabIndex = 0;
    tokens[p].focus();
  }
  document.addEventListener("keydown", (event) => {
    if (!player || event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    const inside = document.activeElement?.closest?.(".k");
    const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
    if (inside && event.key in steps) { walk(inside.p + steps[event.key]); event.preventDefault(); return; }
    // Controls keep the keys that are theirs: a button its space, a select and a radio their arrows.
    if (event.target.matches("select, summary, pre, input[type=radio]") && event.key !== "Escape") return;
    if (event.target.matches("button") && event.key === " ") return;
    if (!(event.key in COMMANDS)) return;
    event.preventDefault();
    COMMANDS[event.key]();
  });
  $("first").onclick = COMMANDS.Home;
  $("back").onclick = COMMANDS.ArrowLeft;
  $("play").onclick = COMMANDS[" "];
  $("next").onclick = COMMANDS.ArrowRight;
  $("last").onclick = COMMANDS.End;
  slider.oninput = () => { if (playing) pause(); show(Number(slider.value)); };

  // -- views and the rest -------------------------------------------------------------------------------------------

  const ENDS = { order: ["first", "last"], confidence: ["unsure", "sure"] };
  function view(name) {
    document.body.dataset.view = name;
    const keys = [make("span", "k m", make("span", "", "mask")), make("span", "k g", make("span", "", "given"))];
    const parts = [make("span", "item", keys[0], "mask"), make("span", "item", keys[1])];
    keys[0].firstChild.textContent = "\u2003";
    if (name in ENDS) {
      const scale = Array.from({ length: 6 }, (_, i) => make("span", `k o${i} c${i}`, make("span", "", "\u2002\u2002")));
      parts.push(make("span", "item scale", ENDS[name][0], ...scale, ENDS[name][1]));
    }
    $("legend").replaceChildren(...parts);
  }
  for (const radio of document.querySelectorAll("[name=view]")) radio.onchange = () => view(radio.value);

  for (const [name, value] of Object.entries(trace.protocol))
    $("protocol").append(make("dt", "", name), make("dd", "", typeof value === "string" ? value : JSON.stringify(value)));

  const link = new URLSearchParams(location.hash.slice(1)); // #sequence=2&event=10&view=confidence
  const asked = document.querySelector(`[name=view][value="${CSS.escape(link.get("view") ?? "")}"]`);
  if (asked) asked.checked = true;
  view(document.querySelector("[name=view]:checked").value);
  tabs();
  if (!trace.sequences.length) { canvas.textContent = "This trace is empty."; $("player").hidden = true; return; }
  open(Math.max(0, Math.min(trace.sequences.length, Number(link.get("sequence") ?? 1)) - 1 || 0), 0);
  if (link.has("event")) show(Number(link.get("event")) || 0);
  else if (!calm.matches) setTimeout(() => { if (!player.at()) play(); }, 700);
})();
