// Runs on the stage: what the server streams becomes players and boards, and one clock moves all of them.

const INVENTED = 1_000_000_000; // ids for alternatives that came without one
const BASES = { A: " bA", C: " bC", G: " bG", T: " bT", N: " bN" };

// The pieces of a run, as they arrive.
function makeWords(start, dna) {
  const pieces = new Map(), ids = new Map();
  let next = INVENTED;
  const meet = (id, piece) => { if (!pieces.has(id)) pieces.set(id, piece); if (!ids.has(piece)) ids.set(piece, id); return id; };
  const words = {
    mask: start.mask?.id ?? next++,
    special: new Set(),
    pieces,
    meet,
    piece: (id) => pieces.get(id) ?? `⟨${id}⟩`,
    // The id of a piece; one is invented if it came without an id.
    named: (piece, id) => (id !== undefined && id !== null ? meet(id, piece) : ids.get(piece) ?? meet(next++, piece)),
  };
  meet(words.mask, start.mask?.piece ?? "[MASK]");
  for (const [id, piece] of Object.entries(start.special ?? {})) { pieces.set(Number(id), piece); words.special.add(Number(id)); }
  words.special.add(words.mask);
  if (dna) words.name = (id) => BASES[words.piece(id).toUpperCase()] ?? "";
  return words;
}

const runsOf = (flags) => {
  const runs = [];
  flags.forEach((flag, p) => {
    if (flag && runs.at(-1)?.[1] === p) runs.at(-1)[1] = p + 1;
    else if (flag) runs.push([p, p + 1]);
  });
  return runs;
};

// One setting with its samples.
export class Run {
  constructor(label, summary, protocol, { dna, n }) {
    Object.assign(this, { label, summary, protocol, dna, sequences: [], over: false });
    this.body = make("div", "samples");
    this.note = make("span", "note", "waiting …");
    this.column = make("section", "run", make("header", "", ...(label ? [make("b", "side-name", label)] : []), make("span", "summary", summary), this.note), this.body);
    this.column.setAttribute("aria-label", `${label ? `Settings ${label}: ` : ""}${summary}`);
    for (let i = 0; i < n; i++) this.body.append(make("div", "canvas waiting"));
  }

  start(data, steps) {
    this.words = makeWords(data, this.dna);
    this.protocol = { model: data.model, ...data.settings, ...this.protocol };
    this.body.replaceChildren();
    for (const sample of data.samples) {
      const canvas = sample.tokens.map((token) => (token.piece === null ? this.words.mask : this.words.named(token.piece, token.id)));
      const given = runsOf(sample.tokens.map((token) => token.piece !== null));
      const player = makePlayer({ canvas, given, events: [] }, this.words.mask);
      const box = make("div", `canvas${this.dna ? " letters bases" : ""}`);
      box.setAttribute("role", "group");
      box.setAttribute("aria-label", `Sample ${sample.index + 1}, seed ${sample.seed}`);
      const title = make("p", "caption", data.samples.length > 1 ? `seed ${sample.seed}` : "");
      this.body.append(make("article", "sample", title, box));
      const board = makeBoard(box, this.words);
      const sequence = { canvas, given, player, board, box, title, seed: sample.seed, text: "", done: false };
      const blocks = Math.ceil(canvas.length / (data.settings?.block ?? canvas.length)) || 1; // each has its steps
      sequence.expected = () => (sequence.done ? 0 : Math.min((steps ?? Infinity) * blocks, player.left[0]) || 0);
      board.open(player, sequence.expected, false);
      box.dir = "auto"; // after the tokens: before them each one would make the browser lay out all others again
      this.sequences[sample.index] = sequence;
    }
    this.note.textContent = "";
  }

  step(data) {
    const { words } = this;
    const changes = data.changes.map(([p, id, piece, prob, tops]) => {
      if (id === null) return [p, words.mask, 0];
      const token = words.named(piece, id), known = (tops ?? []).map(([other, chance, which]) => [words.named(other, which), chance]);
      return known.length ? [p, token, prob ?? 0, known] : [p, token, prob ?? 0];
    });
    const event = { step: data.step, t: data.t ?? null, calls: data.calls ?? 0, changes };
    if (data.length !== undefined && data.length !== null) event.length = data.length;
    if (data.block) event.block = data.block;
    this.sequences[data.index].player.push(event);
  }

  done(data) {
    const sequence = this.sequences[data.index];
    Object.assign(sequence, { text: data.text, done: true, stopped: data.stopped, calls: data.calls });
    const { player, board } = sequence;
    player.finish();
    if (player.at() === player.events.length) board.show(player.at(), true); // masks that are left vanish
  }

  get events() { return Math.max(0, ...this.sequences.map(({ player }) => player.events.length)); }

  // The texts; a sequence that was stopped keeps its masks.
  texts() {
    return this.sequences.map(({ player, text, done }) => (done ? text : Array.from({ length: player.size }, (_, p) => this.words.piece(player.finally(p))).join("")));
  }

  finish(why) {
    this.over = true;
    if (!this.words) this.body.replaceChildren(); // nothing ever arrived
    const calls = Math.max(0, ...this.sequences.map(({ player }) => player.events.at(-1)?.calls ?? 0));
    this.note.textContent = why ?? plural(calls, "network call");
  }

  // The sequences as docs/replay.md describes them.
  traced() {
    return this.sequences.map(({ canvas, given, player, text, seed, done }) => ({
      canvas, given, events: player.events, text, done, name: [this.label, `seed ${seed}`].filter(Boolean).join(", "),
    }));
  }
}

// All runs together; the deck of the transport.
export class Stage {
  constructor(section, { chart, card, uncover, place, say }) {
    Object.assign(this, { section, chart, card, uncover, place, say, runs: [], k: 0, dirty: false });
  }

  open(runs) {
    this.runs = runs;
    this.k = 0;
    this.section.replaceChildren(...runs.map((run) => run.column));
    this.section.classList.toggle("two", runs.length > 1);
    this.card.clear();
    this.changed();
  }

  get sequences() { return this.runs.flatMap((run) => run.sequences).filter(Boolean); }
  get lead() { return this.sequences.reduce((best, one) => (!best || one.player.events.length > best.player.events.length ? one : best), null); }
  ready = () => this.sequences.length > 0;
  at = () => this.k;
  count = () => Math.max(0, ...this.runs.map((run) => run.events));
  growing = () => this.runs.some((run) => !run.over);
  most = () => Math.max(this.count(), ...this.sequences.map(({ expected, player }) => (this.growing() ? expected() : player.events.length)));
  rate = () => pace(this.most());

  // More has arrived: the timeline is redrawn, at most once per frame.
  changed() {
    if (this.dirty) return;
    this.dirty = true;
    requestAnimationFrame(() => {
      this.dirty = false;
      const lead = this.lead;
      if (lead) this.chart.draw(lead.player, Math.max(1, this.most()));
      this.status();
    });
  }

  show = (k, lively) => {
    this.k = k;
    for (const { board, player } of this.sequences) board.show(Math.min(k, player.events.length), lively && k <= player.events.length);
    this.status();
    this.card.point();
    if (!this.growing() && k >= this.count()) this.settle();
  };

  // Once everything is known, masks become as wide as the tokens that will replace them.
  settle() { for (const { board } of this.sequences) board.settle(); }

  status() {
    this.place(this.k, Math.max(1, this.most()), this.sentence());
    this.chart.at(this.k);
    const all = this.sequences, left = all.reduce((sum, { player }) => sum + player.masks(), 0);
    const first = all.reduce((sum, { player }) => sum + player.left[0], 0);
    this.uncover(1 - left / Math.max(1, left, first));
  }

  sentence = () => {
    const all = this.sequences;
    if (!all.length) return ["waiting"];
    if (all.length === 1) return sentenceOf(all[0].player);
    const left = all.reduce((sum, { player }) => sum + player.masks(), 0);
    return [`step ${this.k} of ${this.most()}`, plural(all.length, "text"), left ? `${plural(left, "mask")} left` : "all written"];
  };
}
