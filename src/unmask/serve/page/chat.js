// A conversation: what is asked, and the answer as masks become words. What is written enters the page as text only.
import { Run } from "./stage.js";
import { postEvents } from "./stream.js";

// The events of an answer without the conversation before it.
function withoutPrompt(event, data, begin) {
  if (event === "start") return { ...data, samples: data.samples.map((sample) => ({ ...sample, tokens: sample.tokens.slice(begin) })) };
  if (event !== "step") return data;
  const changes = data.changes.map(([p, ...rest]) => [p - begin, ...rest]);
  return { ...data, changes, ...(data.block && { block: data.block.map((p) => Math.max(0, p - begin)) }), ...(data.length && { length: data.length - begin }) };
}

const NAMES = { user: "You", assistant: "Answer" };
const ENDS = { length: "cut off at its length", eos: "", stop: "" };

export class Conversation {
  // `list` holds the turns; `say` speaks to those who listen, `uncover(share)` shows how much is written.
  constructor(list, { say, uncover }) {
    Object.assign(this, { list, say, uncover, messages: [], stopper: null, answers: 0 });
    this.calm = matchMedia("(prefers-reduced-motion: reduce)");
  }

  get busy() { return this.stopper !== null; }
  stop() { this.stopper?.abort(); }

  clear() {
    this.stop();
    this.messages = [];
    this.list.replaceChildren();
    this.uncover(1);
  }

  turn(role, ...content) {
    const body = make("div", "said", ...content), note = make("p", "note");
    body.dir = "auto";
    const item = make("li", `turn ${role}`, make("span", "away", `${NAMES[role]}: `), body, note);
    this.list.append(item);
    return { item, body, note };
  }

  // Asks, and resolves when the answer is shown. One that was stopped, like its question, is not kept.
  async send(text, system, settings) {
    const stop = (this.stopper = new AbortController()), asked = { role: "user", content: text };
    const question = this.turn("user", text), answer = this.turn("assistant");
    const run = new Run("", "", {}, { dna: false, n: 1 });
    answer.body.append(run.body);
    answer.item.setAttribute("aria-busy", "true");
    const body = { ...settings, messages: [...(system ? [{ role: "system", content: system }] : []), ...this.messages, asked] };
    const { messages } = this; // a new conversation has others
    let begin = 0, done = null, shown = null;
    try {
      await postEvents("/v1/diffusion", body, (event, data) => {
        if (event === "start") {
          begin = data.samples[0].tokens.findIndex((token) => token.piece === null);
          run.start(withoutPrompt(event, data, begin), data.steps);
          answer.item.scrollIntoView({ block: "nearest" });
          shown = this.play(run, answer, stop.signal);
        } else if (event === "step") run.step(withoutPrompt(event, data, begin));
        else if (event === "done") { run.done(data); done = data; }
      }, stop.signal);
      run.finish();
      await shown;
    } catch (error) {
      run.finish("stopped");
      for (const { item } of [question, answer]) item.classList.add("dropped");
      answer.note.textContent = error.name === "AbortError" ? "stopped, and not part of the conversation" : "no answer";
      throw error;
    } finally {
      this.stopper = null;
      answer.item.removeAttribute("aria-busy");
      this.uncover(1);
    }
    messages.push(asked, { role: "assistant", content: done.text });
    this.answers++;
    answer.body.replaceChildren(done.text);
    const again = make("button", "small again", "Watch again");
    again.type = "button";
    again.onclick = async () => {
      again.disabled = true;
      answer.body.replaceChildren(run.body);
      run.sequences[0].board.show(0, false);
      await this.play(run, answer);
      answer.body.replaceChildren(done.text);
      again.disabled = false;
    };
    answer.note.replaceChildren([plural(done.calls, "network call"), ENDS[done.stopped]].filter(Boolean).join(", "), " ", again);
    if (answer.item.getBoundingClientRect().top < innerHeight) answer.item.scrollIntoView({ block: "nearest" });
    if (answer.item.isConnected) this.say(done.text || "an empty answer");
  }

  // Shows the steps of an answer as they come, but no faster than eyes can follow (at once for those who do not wait).
  play(run, { item }, hurry) {
    const { player, board } = run.sequences[0];
    let clock = 0, then = performance.now();
    return new Promise((over) => {
      const frame = (now) => {
        if (!item.isConnected) return over();
        const all = player.events.length, expected = run.over ? all : Math.max(all, run.sequences[0].expected());
        clock = this.calm.matches || hurry?.aborted ? all : Math.min(all, clock + (Math.max(0, now - then) / 1000) * Math.max(8, 2 * pace(expected)));
        then = now;
        const low = innerHeight + scrollY >= document.documentElement.scrollHeight - 40;
        if (Math.floor(clock) !== player.at()) board.show(Math.floor(clock), true);
        this.uncover(1 - player.masks() / Math.max(1, player.left[0]));
        if (low) scrollTo(0, document.documentElement.scrollHeight); // stays at the end, unless somebody scrolled up
        if (run.over && player.at() >= player.events.length) return over();
        requestAnimationFrame(frame);
      };
      requestAnimationFrame(frame);
    });
  }
}
