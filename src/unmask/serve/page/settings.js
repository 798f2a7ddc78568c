// The controls of one side (A, or B when two are compared), and the link that holds them.

const FRONT = ["sampler", "length", "steps", "temperature", "top_p", "seed"]; // always in sight, in this order
const BEGIN = { steps: "32", temperature: "1", top_p: "1", seed: "0", n: "1" }; // what these begin with
const STEP = { temperature: 0.05, guidance: 0.1 }; // of the arrow keys
const SAID = new Set(["steps", "seed", "n"]); // sent also where they are what they began with
const SHARED = new Set(["n"]); // both sides have as many samples
const TEXT = new Set(["select", "flag"]);
const DRAWN = ["temperature", "top_p", "top_k", "min_p"]; // without them, tokens are drawn from the model's exact law
let ALL = []; // { name, title, kind (select, number or flag), whole, begin, more, attributes }

// The controls that the models of a server need: the settings of each say their kind, limits and help.
export function learn(models) {
  const settings = new Map(models.flatMap((model) => model.unmask?.settings ?? []).map((one) => [one.name, one]));
  const control = (name) => {
    const { title = name, kind = "whole", min, max, help, default_words: usual } = settings.get(name) ?? {};
    if (["choice", "label", "sampler"].includes(kind)) return { name, title, kind: "select", attributes: { title: help ?? "" } };
    if (kind === "flag") return { name, title, kind, attributes: { title: help } };
    const whole = kind === "whole", attributes = { step: whole ? 1 : STEP[name] ?? 0.01 };
    if (min !== null && min !== undefined && name !== "seed") attributes.min = min;
    if (max !== null && max !== undefined && name !== "seed" && name !== "steps") attributes.max = max;
    if (help) Object.assign(attributes, { title: help, placeholder: /^[\d.]+$/.test(usual ?? "") ? usual : "auto" });
    return { name, title, kind: "number", whole, attributes };
  };
  const front = [{ name: "model", title: "Model", kind: "select", attributes: {} }, ...FRONT.map(control),
    { name: "n", title: "Samples", kind: "number", whole: true, attributes: { min: 1, max: 16, step: 1 } }];
  Object.assign(front.find(({ name }) => name === "length"), { title: "Length", attributes: { min: 1, step: 1 } });
  Object.assign(front.find(({ name }) => name === "seed").attributes, { min: 0 });
  const more = [...settings.keys()].filter((name) => !FRONT.includes(name)).map(control);
  ALL = [...front, ...more.map((one) => ({ ...one, more: true }))].map((one) => ({ begin: BEGIN[one.name] ?? "", ...one }));
}

// What settings are without a recommendation.
const beginnings = () => Object.fromEntries(ALL.filter(({ name }) => !["model", "length", "seed", "n"].includes(name)).map(({ name, begin }) => [name, begin]));
const number = (text) => (text === "" ? null : Number(text));

export class Side {
  constructor(name, models, changed) {
    this.name = name;
    this.models = models;
    this.inputs = {};
    this.box = make("fieldset", "side");
    this.box.append(make("legend", "", `Settings ${name}`));
    this.more = make("details", "more", make("summary", "", "More settings"));
    const rest = make("div", "side");
    this.more.append(rest);
    for (const { name: field, title, kind, whole, begin, attributes, more } of ALL) {
      const input = document.createElement(TEXT.has(kind) ? "select" : "input");
      input.id = `${name.toLowerCase()}-${field}`;
      if (kind === "number") { input.type = kind; input.value = begin; input.inputMode = whole ? "numeric" : "decimal"; }
      if (kind === "flag") input.append(new Option("auto", ""), new Option("yes", "true"), new Option("no", "false"));
      for (const [key, value] of Object.entries(attributes)) input.setAttribute(key, value);
      this.inputs[field] = input;
      input.addEventListener("change", () => { if (field === "model") this.adapt(); else this.enable(); if (field === "stride") this.fit(); changed(field); });
      const box = make("label", `field field-${field}`, make("span", "", title), input);
      if (SHARED.has(field) && name !== "A") box.hidden = true;
      (more ? rest : this.box).append(box);
    }
    this.box.append(this.more);
    this.longer = make("p", "hint longer");
    this.advice = make("p", "hint advice");
    this.box.append(this.longer, this.advice);
    this.changed = changed;
    for (const model of models) this.inputs.model.append(new Option(model.id, model.id));
    this.adapt();
  }

  get model() { return this.models.find((model) => model.id === this.inputs.model.value) ?? this.models[0]; }
  get facts() { return this.model?.unmask ?? {}; }
  get dna() { return this.facts.kind === "dna"; }

  // The settings of this model, by name.
  get settings() { return new Map((this.facts.settings ?? []).map((one) => [one.name, one])); }

  // What the model recommends, as its controls hold it; and what they hold where nothing is recommended.
  recommended(facts = this.facts) {
    // Whether a text has an end is left to the server: a text with gaps has its end already.
    const known = Object.entries(facts.recommended?.settings ?? {}).filter(([name]) => this.inputs[name] && name !== "stop_at_eos");
    return Object.fromEntries(known.map(([name, value]) => [name, String(value)]));
  }
  plain() {
    const first = beginnings();
    return Object.fromEntries(DRAWN.filter((name) => this.inputs[name]).map((name) => [name, first[name] ?? ""]));
  }
  // As at the beginning, with these values; whoever sets one of those by which tokens are drawn sets all of them.
  start(values = {}) {
    this.set({ model: values.model ?? this.model?.id });
    const drawn = DRAWN.some((name) => name in values) ? this.plain() : {};
    this.set({ ...beginnings(), ...this.recommended(), ...drawn, ...values });
  }

  // How tokens are drawn: "recommended", "exact" or "custom".
  law(facts = this.facts) {
    const plain = this.plain(), advised = Object.fromEntries(Object.entries(this.recommended(facts)).filter(([name]) => name in plain));
    const same = (wanted) => Object.entries(wanted).every(([name, value]) => {
      const { type, value: held } = this.inputs[name];
      return type === "number" ? number(held) === number(value) || (name === "top_p" && [held, value].every((one) => one === "" || one === "1")) : held === value;
    });
    if (same({ ...plain, ...advised })) return "recommended";
    return same(plain) ? "exact" : "custom";
  }
  follow(law) {
    if (law !== "custom") this.set({ ...this.plain(), ...(law === "recommended" ? this.recommended() : {}) });
    this.changed("law");
  }

  // Settings that differ from those of another side, so that there is something to compare.
  differ(other) {
    this.set(other.values());
    if (Object.keys(this.recommended()).length) return void this.set(other.law() === "exact" ? { ...this.plain(), ...this.recommended() } : this.plain());
    if (!this.inputs.steps.disabled) return void this.set({ steps: Number(other.inputs.steps.value) > 16 ? "8" : "64" });
    this.set({ temperature: other.inputs.temperature.value === "1" ? "0.7" : "1" });
  }

  // What this model can do.
  adapt() {
    const before = this.last ? this.law(this.last) : "recommended";
    this.last = this.facts;
    const { samplers = [], usual_sampler: usual, length, max_steps: steps } = this.facts;
    const lists = { sampler: [usual ? `auto (${usual})` : "auto", samplers] };
    for (const { name, kind, choices, default_words: words } of this.settings.values())
      if (["choice", "label"].includes(kind)) lists[name] = [kind === "label" ? "none" : words ? `auto (${words})` : "auto", choices];
    for (const [field, [first, names]] of Object.entries(lists)) {
      const box = this.inputs[field], kept = box.value;
      box.replaceChildren(new Option(first, ""), ...names.map((name) => new Option(name, name)));
      box.value = names.includes(kept) ? kept : "";
    }
    this.inputs.length.placeholder = length ?? "";
    if (steps) this.inputs.steps.max = steps;
    if (before !== "custom") for (const [name, value] of Object.entries({ ...this.plain(), ...(before === "recommended" ? this.recommended() : {}) })) this.inputs[name].value = value;
    this.enable();
    this.fit();
  }

  // No longer than the model can write.
  fit() {
    const { length } = this.inputs;
    if (length.max && Number(length.value) > Number(length.max)) length.value = length.max;
  }

  // What goes together: fields that sampler and model have no use for are not shown, and one may rule out another.
  enable() {
    const { inputs, facts, settings } = this, { length, max_length: most } = facts;
    const takes = facts.takes?.[inputs.sampler.value || facts.usual_sampler] ?? ["steps"];
    const ofSamplers = new Set(Object.values(facts.takes ?? {}).flat());
    for (const { name, more } of ALL) {
      const there = !more || (settings.has(name) && (!ofSamplers.has(name) || takes.includes(name)));
      inputs[name].disabled = !there;
      if (more) inputs[name].parentElement.hidden = !there;
    }
    const windows = inputs.stride && !facts.any_length && most > length;
    if (inputs.stride) { inputs.stride.disabled = !windows; inputs.stride.parentElement.hidden = !windows; }
    inputs.steps.disabled = !takes.includes("steps");
    const given = (field) => inputs[field] && !inputs[field].disabled && inputs[field].value !== "";
    for (const { name, instead } of settings.values()) if (given(name)) for (const other of instead) if (inputs[other]) inputs[other].disabled = true;
    if (inputs.guidance && !given("label")) inputs.guidance.disabled = true;
    const longest = facts.any_length || given("stride") || !length ? most ?? length : Math.min(length, most ?? length);
    if (longest) inputs.length.max = longest;
    this.hints(windows && !given("stride"));
  }

  // What is recommended, and how to write more than the model's length.
  hints(windows) {
    const { length } = this.inputs, { length: most, max_length: longest } = this.facts, stride = Math.max(1, Math.floor(most / 2));
    this.longer.hidden = !windows || (length.value !== "" && Number(length.value) < most);
    const button = make("button", "small", `Write ${Math.min(2 * most, longest)} tokens`);
    button.type = "button";
    button.onclick = () => { this.set({ stride: String(stride), length: String(Math.min(2 * most, longest)) }); this.changed("stride"); };
    this.longer.replaceChildren(make("span", "", `The model was trained on ${most} tokens. A window stride, for example ${stride}, writes up to ${longest?.toLocaleString("en")}.`), button);
    const known = Object.entries(this.recommended());
    this.advice.hidden = !known.length || this.name !== "A";
    this.advice.textContent = `Recommended by ${this.model?.id}: ${known.map(([name, value]) => `${titleOf(name)} ${value}`).join(", ")}. The exact law has temperature 1 and no filter; figures and scores always use it.`;
  }

  // In a conversation the length is that of an answer.
  chat(on) {
    this.box.classList.toggle("chatting", on);
    this.inputs.length.previousElementSibling.textContent = on ? "Answer tokens" : "Length";
    this.inputs.length.placeholder = (on ? "auto" : this.facts.length) ?? "";
  }

  // What goes to the server: only what was said, and whatever the model would recommend something else for.
  request() {
    const body = {}, advised = this.recommended();
    for (const { name, kind, begin } of ALL) {
      const { value, disabled } = this.inputs[name];
      if (value === "" || disabled) continue;
      if (TEXT.has(kind)) body[name] = kind === "flag" ? value === "true" : value;
      else if (SAID.has(name) || name in advised || value !== begin) body[name] = Number(value);
    }
    return body;
  }

  summary() {
    const { sampler, steps, temperature, top_p: p, seed } = this.inputs;
    const parts = [this.model?.id, sampler.value || this.facts.usual_sampler];
    if (!steps.disabled) parts.push(`${steps.value} steps`);
    if (temperature.value !== "1") parts.push(`temperature ${temperature.value}`);
    if (p.value !== "1" && p.value !== "") parts.push(`top-p ${p.value}`);
    for (const { name, title, more } of ALL) {
      const { value, disabled } = this.inputs[name];
      if (more && value !== "" && !disabled) parts.push(`${title.toLowerCase()} ${value}`);
    }
    parts.push(`seed ${seed.value}`);
    if (Object.keys(this.recommended()).length) parts.push({ recommended: "recommended by the model", exact: "exact law", custom: "" }[this.law()]);
    return parts.filter(Boolean).join(" · ");
  }

  // Whether all that a mode uses can be sent. A field that is folded away is shown first: the browser points at it.
  // Steps are for the arrow keys only: a temperature of 0.72 is as good as any.
  valid(mode) {
    const unused = { fill: (field) => field === "length", score: (field) => field !== "model", chat: (field) => field === "n" }[mode] ?? (() => false);
    const wrong = ALL.find(({ name, whole }) => {
      const input = this.inputs[name], { validity } = input;
      const bad = !input.disabled && !input.closest("[hidden]") && !unused(name) && !validity.valid && (whole || !validity.stepMismatch);
      input.parentElement.classList.toggle("wrong", bad);
      return bad;
    });
    if (!wrong) return true;
    const input = this.inputs[wrong.name];
    for (let box = input.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
    input.reportValidity();
    return false;
  }

  values() { return Object.fromEntries(ALL.map(({ name }) => [name, this.inputs[name].value])); }

  // Only values that the control can hold: a link is text from anywhere.
  set(values) {
    if (values.model && this.models.some((model) => model.id === values.model)) { this.inputs.model.value = values.model; this.adapt(); }
    for (const { name: field, kind } of ALL) {
      const value = values[field];
      if (value === undefined || field === "model") continue;
      if (kind === "number" && value !== "" && !Number.isFinite(Number(value))) continue;
      if (TEXT.has(kind) && ![...this.inputs[field].options].some((option) => option.value === value)) continue;
      this.inputs[field].value = value;
    }
    if (ALL.some(({ name, more }) => more && this.inputs[name].value !== "")) this.more.open = true;
    this.enable();
  }
}

const titleOf = (name) => (ALL.find((one) => one.name === name)?.title ?? name).toLowerCase();

// #mode=fill&text=...&steps=32&seed=3&b.steps=128
export function toHash(page) {
  const link = new URLSearchParams();
  const first = beginnings();
  link.set("mode", page.mode);
  for (const [name, value] of Object.entries(page.texts)) if (value) link.set(name, value);
  for (const [field, value] of Object.entries(page.a)) if (value !== "" || first[field]) link.set(field, value);
  if (page.b) for (const [field, value] of Object.entries(page.b)) if (value !== page.a[field]) link.set(`b.${field}`, value);
  if (page.b) link.set("compare", "1");
  if (page.view !== "order") link.set("view", page.view);
  return `#${link}`;
}

export function fromHash(hash) {
  const link = new URLSearchParams(hash.slice(1)), a = {}, b = {}, rest = {};
  const known = new Set(ALL.map(({ name }) => name));
  for (const [name, value] of link) {
    if (known.has(name)) a[name] = value;
    else if (name.startsWith("b.") && known.has(name.slice(2))) b[name.slice(2)] = value;
    else rest[name] = value;
  }
  return { a, b: { ...a, ...b }, rest, empty: !hash.includes("=") };
}
