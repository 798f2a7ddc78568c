// The replay page: a trace on a canvas of tokens, one sequence at a time.
(() => {

  const trace = JSON.parse(document.getElementById("trace").textContent);
  const $ = (id) => document.getElementById(id);
  const canvas = $("canvas"), calm = matchMedia("(prefers-reduced-motion: reduce)");
  const words = { mask: trace.mask, special: new Set(trace.special), piece: (id) => trace.pieces[id] ?? `⟨${id}⟩` };
  const board = makeBoard(canvas, words), chart = makeChart($("chart"));
  const say = (text) => { $("live").textContent = text; };
  const card = makeCard($("card"), canvas, $("player"), say);
  let player, current = -1; // what is shown

  function show(k, lively) {
    board.show(k, lively);
    const at = player.at(), left = player.masks();
    transport.place(at, player.events.length, sentenceOf(player));
    chart.at(at);
    uncover(1 - left / Math.max(1, left, player.left[0]));
    card.point();
  }

  const transport = makeTransport({
    show, say,
    ready: () => Boolean(player),
    at: () => player.at(),
    count: () => player.events.length,
    growing: () => false,
    rate: () => pace(player.events.length),
    sentence: () => sentenceOf(player),
    keys: card.walk,
    leave: card.leave,
  });

  function open(index, share) {
    current = index;
    player = makePlayer(trace.sequences[index], trace.mask);
    card.clear();
    board.open(player);
    chart.draw(player);
    $("text").textContent = trace.sequences[index].text;
    for (const tab of $("tabs").children) {
      const selected = tab.id === `tab${index}`;
      tab.setAttribute("aria-selected", selected);
      tab.tabIndex = selected ? 0 : -1;
      if (selected) tab.scrollIntoView({ block: "nearest", inline: "nearest" });
    }
    show(Math.round(share * player.events.length), transport.playing());
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
      choose((current + move + trace.sequences.length) % trace.sequences.length);
      $(`tab${current}`).focus();
      event.preventDefault();
      event.stopPropagation();
    };
  }

  function choose(i) {
    const share = player.events.length ? player.at() / player.events.length : 0;
    open(i, share);
    transport.jump(player.at());
    transport.announce();
  }

  function view(name) {
    document.body.dataset.view = name;
    $("legend").replaceChildren(...legendOf(name));
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
  if (link.has("event")) show(Number(link.get("event")) || 0, false);
  else if (!calm.matches) setTimeout(() => { if (!player.at()) transport.play(); }, 700);
})();
