// Play, pause, step, scrub, speed: the player at the bottom of the replay and of the live page, with its keys.
"use strict";

const SECONDS = 4; // that a text takes at most
const pace = (events) => Math.max(2.5, events / SECONDS); // events per second: short texts play step by step

// `deck`: {count(): number of events, at(), show(k, playing), growing(): more may arrive, rate(): events per second at 1x,
// say(text), sentence(), keys(event): whether the page has used the key itself, leave()}.
function makeTransport(deck) {
  const $ = (id) => document.getElementById(id);
  const slider = $("slider"), speed = $("speed");
  let playing = false, clock = 0, then = 0;

  const announce = () => deck.say(deck.sentence().join(", "));
  function frame(now) {
    if (!playing) return;
    clock = Math.min(deck.count(), clock + (Math.max(0, now - then) / 1000) * Number(speed.value) * deck.rate());
    then = now;
    const k = Math.floor(clock);
    if (k !== deck.at()) deck.show(k, true);
    if (k >= deck.count() && !deck.growing()) return pause();
    requestAnimationFrame(frame);
  }
  function play() {
    if (!deck.count() && !deck.growing()) return;
    if (deck.at() >= deck.count() && !deck.growing()) deck.show(0, true);
    playing = true;
    clock = deck.at();
    then = performance.now();
    button();
    requestAnimationFrame(frame);
  }
  function pause() {
    playing = false;
    button();
    deck.show(deck.at(), false); // what is finished has no fresh tokens
    announce();
  }
  function button() {
    document.body.classList.toggle("playing", playing);
    $("play").setAttribute("aria-label", playing ? "Pause" : "Play");
  }
  const go = (k) => { if (playing) pause(); deck.show(Math.max(0, Math.min(deck.count(), k)), false); announce(); };
  function faster(by) {
    speed.selectedIndex = Math.max(0, Math.min(speed.options.length - 1, speed.selectedIndex + by));
    deck.say(`speed ${speed.selectedOptions[0].textContent}`);
  }

  const COMMANDS = {
    ArrowLeft: () => go(deck.at() - 1),
    ArrowRight: () => go(deck.at() + 1),
    Home: () => go(0),
    End: () => go(deck.count()),
    " ": () => (playing ? pause() : play()),
    ArrowUp: () => faster(1),
    ArrowDown: () => faster(-1),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (deck.keys(event)) return event.preventDefault();
    if (event.key === "Escape") return deck.leave();
    if (!deck.ready()) return;
    // Controls keep their own keys: a button its space, a select and a radio their arrows, a text field all of them.
    if (event.target.matches("textarea, input:not([type=range], [type=radio], [type=checkbox])")) return;
    if (event.target.matches("select, summary, pre, a, input[type=radio], input[type=checkbox], [role=tab]")) return;
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
  slider.oninput = () => { if (playing) pause(); deck.show(Math.min(deck.count(), Number(slider.value)), false); };

  return {
    play, pause, announce,
    playing: () => playing,
    jump: (k) => { clock = k; },
    // Where the slider stands, and what the status line says.
    place: (k, most, sentence) => {
      slider.max = most;
      slider.value = k;
      const [first, ...rest] = sentence;
      $("status").replaceChildren(make("b", "", first), ...rest.map((text) => make("span", "", text)));
      slider.setAttribute("aria-valuetext", sentence.join(", "));
    },
  };
}
