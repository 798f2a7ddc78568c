// The controls of one side (A, or B when two are compared), and the link that holds them.

const HIDDEN = new Set(["order"]); // needs an order, which is for the API
const FIELDS = [ // name, label, kind, usual value, attributes
  ["model", "Model", "select", "", {}],
  ["sampler", "Sampler", "select", "", {}],
  ["length", "Length", "number", "", { min: 1, step: 1 }],
  ["steps", "Steps", "number", "32", { min: 1, step: 1 }],
  ["temperature", "Temperature", "number", "1", { min: 0, max: 10, step: 0.05 }],
  ["top_p", "Top-p", "number", "1", { min: 0, max: 1, step: 0.01 }],
  ["seed", "Seed", "number", "0", { min: 0, step: 1 }],
  ["n", "Samples", "number", "1", { min: 1, max: 16, step: 1 }],
];
const MORE = [
  ["top_k", "Top-k", "number", "", { min: 1, step: 1, placeholder: "all" }],
  ["min_p", "Min-p", "number", "", { min: 0, max: 1, step: 0.01, placeholder: "0" }],
  ["k", "Tokens a step", "number", "", { min: 1, step: 1, placeholder: "auto" }],
  ["threshold", "Threshold", "number", "", { min: 0, step: 0.01, placeholder: "none" }],
  ["eta", "Remasking η", "number", "", { min: 0, max: 1, step: 0.01, placeholder: "auto" }],
  ["stride", "Window stride", "number", "", { min: 1, step: 1, placeholder: "none" }],
  ["label", "Label", "select", "", {}],
  ["guidance", "Guidance", "number", "", { min: 0, max: 100, step: 0.1, placeholder: "1" }],
];
const ALL = [...FIELDS, ...MORE];
const WHOLE = new Set(["length", "steps", "seed", "n", "top_k", "k", "stride"]);
const TEXT = new Set(["model", "sampler", "label"]);
const SHARED = new Set(["n"]); // both sides have as many samples

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
    for (const [field, label, kind, usual, attributes] of ALL) {
      const input = document.createElement(kind === "select" ? "select" : "input");
      input.id = `${name.toLowerCase()}-${field}`;
      if (kind !== "select") { input.type = kind; input.value = usual; input.inputMode = WHOLE.has(field) ? "numeric" : "decimal"; }
      for (const [key, value] of Object.entries(attributes)) input.setAttribute(key, value);
      this.inputs[field] = input;
      input.addEventListener("change", () => { if (field === "model") this.adapt(); else this.enable(); if (field === "stride") this.fit(); changed(field); });
      const box = make("label", `field field-${field}`, make("span", "", label), input);
      if (SHARED.has(field) && name !== "A") box.hidden = true;
      (MORE.some(([more]) => more === field) ? rest : this.box).append(box);
    }
    this.box.append(this.more);
    for (const model of models) this.inputs.model.append(new Option(model.id, model.id));
    this.adapt();
  }

  get model() { return this.models.find((model) => model.id === this.inputs.model.value) ?? this.models[0]; }
  get facts() { return this.model?.unmask ?? {}; }
  get dna() { return this.facts.kind === "dna"; }

  // What this model can do.
  adapt() {
    const { samplers = [], usual_sampler: usual, length, labels = [], max_steps: steps } = this.facts, box = this.inputs.sampler;
    const kept = box.value, names = samplers.filter((name) => !HIDDEN.has(name));
    box.replaceChildren(new Option(usual ? `auto (${usual})` : "auto", ""), ...names.map((name) => new Option(name, name)));
    box.value = names.includes(kept) ? kept : "";
    const label = this.inputs.label, named = label.value;
    label.replaceChildren(new Option("none", ""), ...labels.map((name) => new Option(name, name)));
    label.value = labels.includes(named) ? named : "";
    this.inputs.length.placeholder = length ?? "";
    if (steps) this.inputs.steps.max = steps;
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
    const { inputs, facts } = this, { length, max_length: most, labels = [] } = facts;
    const takes = facts.takes?.[inputs.sampler.value || facts.usual_sampler] ?? ["steps"];
    const useful = { k: takes.includes("k"), threshold: takes.includes("threshold"), eta: takes.includes("eta"),
      label: labels.length > 0, guidance: labels.length > 0, stride: !facts.any_length && most > length };
    for (const [field, there] of Object.entries(useful)) {
      inputs[field].disabled = !there;
      inputs[field].parentElement.hidden = !there;
    }
    const given = (field) => !inputs[field].disabled && inputs[field].value !== "";
    if (given("k")) inputs.threshold.disabled = true;
    if (!given("label")) inputs.guidance.disabled = true;
    inputs.steps.disabled = !takes.includes("steps") || given("k") || given("threshold");
    const longest = facts.any_length || given("stride") || !length ? most ?? length : Math.min(length, most ?? length);
    if (longest) inputs.length.max = longest;
  }

  // What goes to the server: only what was said.
  request() {
    const body = {};
    for (const [field, , , usual] of ALL) {
      const { value, disabled } = this.inputs[field];
      if (value === "" || disabled) continue;
      if (TEXT.has(field)) body[field] = value;
      else if (["steps", "seed", "n"].includes(field) || value !== usual) body[field] = Number(value);
    }
    return body;
  }

  summary() {
    const { sampler, steps, temperature, top_p: p, seed } = this.inputs;
    const parts = [this.model?.id, sampler.value || this.facts.usual_sampler];
    if (!steps.disabled) parts.push(`${steps.value} steps`);
    if (temperature.value !== "1") parts.push(`temperature ${temperature.value}`);
    if (p.value !== "1" && p.value !== "") parts.push(`top-p ${p.value}`);
    for (const [field, label] of MORE) {
      const { value, disabled } = this.inputs[field];
      if (value !== "" && !disabled) parts.push(`${label.toLowerCase()} ${value}`);
    }
    parts.push(`seed ${seed.value}`);
    return parts.filter(Boolean).join(" · ");
  }

  // Whether all that a mode uses can be sent. A field that is folded away is shown first: the browser points at it.
  // Steps are for the arrow keys only: a temperature of 0.72 is as good as any.
  valid(mode) {
    const unused = { fill: (field) => field === "length", score: (field) => field !== "model" }[mode] ?? (() => false);
    const wrong = ALL.map(([field]) => field).find((field) => {
      const input = this.inputs[field], { validity } = input;
      const bad = !input.disabled && !input.closest("[hidden]") && !unused(field) && !validity.valid && (WHOLE.has(field) || !validity.stepMismatch);
      input.parentElement.classList.toggle("wrong", bad);
      return bad;
    });
    if (!wrong) return true;
    const input = this.inputs[wrong];
    for (let box = input.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
    input.reportValidity();
    return false;
  }

  values() { return Object.fromEntries(ALL.map(([field]) => [field, this.inputs[field].value])); }

  // Only values that the control can hold: a link is text from anywhere.
  set(values) {
    if (values.model && this.models.some((model) => model.id === values.model)) { this.inputs.model.value = values.model; this.adapt(); }
    for (const [field, , kind] of ALL) {
      const value = values[field];
      if (value === undefined || field === "model") continue;
      if (kind === "number" && value !== "" && !Number.isFinite(Number(value))) continue;
      if (kind === "select" && ![...this.inputs[field].options].some((option) => option.value === value)) continue;
      this.inputs[field].value = value;
    }
    if (MORE.some(([field]) => this.inputs[field].value !== "")) this.more.open = true;
    this.enable();
  }
}

// What the examples begin with.
export const USUAL = Object.fromEntries(ALL.filter(([field]) => !["model", "length", "seed", "n"].includes(field)).map(([field, , , usual]) => [field, usual]));

// #mode=fill&text=...&steps=32&seed=3&b.steps=128
export function toHash(page) {
  const link = new URLSearchParams();
  link.set("mode", page.mode);
  for (const [name, value] of Object.entries(page.texts)) if (value) link.set(name, value);
  for (const [field, value] of Object.entries(page.a)) if (value !== "" || USUAL[field]) link.set(field, value);
  if (page.b) for (const [field, value] of Object.entries(page.b)) if (value !== page.a[field]) link.set(`b.${field}`, value);
  if (page.b) link.set("compare", "1");
  if (page.view !== "order") link.set("view", page.view);
  return `#${link}`;
}

export function fromHash(hash) {
  const link = new URLSearchParams(hash.slice(1)), a = {}, b = {}, rest = {};
  const known = new Set(ALL.map(([field]) => field));
  for (const [name, value] of link) {
    if (known.has(name)) a[name] = value;
    else if (name.startsWith("b.") && known.has(name.slice(2))) b[name.slice(2)] = value;
    else rest[name] = value;
  }
  return { a, b: { ...a, ...b }, rest, empty: !hash.includes("=") };
}
