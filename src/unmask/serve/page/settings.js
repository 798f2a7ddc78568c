// The controls of one side (A, or B when two are compared), and the link that holds them.

const STEPLESS = new Set(["first-hitting", "left-to-right"]); // their steps follow from the length
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
const WHOLE = new Set(["length", "steps", "seed", "n"]);
const SHARED = new Set(["n"]); // both sides have as many samples

export class Side {
  constructor(name, models, changed) {
    this.name = name;
    this.models = models;
    this.inputs = {};
    this.box = make("fieldset", "side");
    this.box.append(make("legend", "", `Settings ${name}`));
    for (const [field, label, kind, usual, attributes] of FIELDS) {
      const input = document.createElement(kind === "select" ? "select" : "input");
      input.id = `${name.toLowerCase()}-${field}`;
      if (kind !== "select") { input.type = kind; input.value = usual; input.inputMode = WHOLE.has(field) ? "numeric" : "decimal"; }
      for (const [key, value] of Object.entries(attributes)) input.setAttribute(key, value);
      this.inputs[field] = input;
      input.addEventListener("change", () => { if (field === "model") this.adapt(); if (field === "sampler") this.enable(); changed(field); });
      const box = make("label", `field field-${field}`, make("span", "", label), input);
      if (SHARED.has(field) && name !== "A") box.hidden = true;
      this.box.append(box);
    }
    for (const model of models) this.inputs.model.append(new Option(model.id, model.id));
    this.adapt();
  }

  get model() { return this.models.find((model) => model.id === this.inputs.model.value) ?? this.models[0]; }
  get facts() { return this.model?.unmask ?? {}; }
  get dna() { return this.facts.kind === "dna"; }

  // What this model can do.
  adapt() {
    const { samplers = [], usual_sampler: usual, length, max_length: most, max_steps: steps } = this.facts, box = this.inputs.sampler;
    const kept = box.value, names = samplers.filter((name) => !HIDDEN.has(name));
    box.replaceChildren(new Option(usual ? `auto (${usual})` : "auto", ""), ...names.map((name) => new Option(name, name)));
    box.value = names.includes(kept) ? kept : "";
    const longest = this.facts.any_length || !length ? most ?? length : Math.min(length, most ?? length);
    this.inputs.length.placeholder = length ?? "";
    if (longest) this.inputs.length.max = longest;
    if (longest && Number(this.inputs.length.value) > longest) this.inputs.length.value = longest;
    if (steps) this.inputs.steps.max = steps;
    this.enable();
  }

  enable() {
    this.inputs.steps.disabled = STEPLESS.has(this.inputs.sampler.value || this.facts.usual_sampler);
  }

  // What goes to the server: only what was said.
  request() {
    const body = {};
    for (const [field, , , usual] of FIELDS) {
      const { value, disabled } = this.inputs[field];
      if (value === "" || disabled) continue;
      if (field === "model" || field === "sampler") body[field] = value;
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
    parts.push(`seed ${seed.value}`);
    return parts.filter(Boolean).join(" · ");
  }

  valid() { return Object.values(this.inputs).every((input) => input.disabled || input.closest("[hidden]") || input.reportValidity()); }

  values() { return Object.fromEntries(FIELDS.map(([field]) => [field, this.inputs[field].value])); }

  // Only values that the control can hold: a link is text from anywhere.
  set(values) {
    if (values.model && this.models.some((model) => model.id === values.model)) { this.inputs.model.value = values.model; this.adapt(); }
    for (const [field, , kind] of FIELDS) {
      const value = values[field];
      if (value === undefined || field === "model") continue;
      if (kind === "number" && value !== "" && !Number.isFinite(Number(value))) continue;
      if (kind === "select" && ![...this.inputs[field].options].some((option) => option.value === value)) continue;
      this.inputs[field].value = value;
    }
    this.enable();
  }
}

// #mode=fill&text=...&steps=32&seed=3&b.steps=128
export function toHash(page) {
  const link = new URLSearchParams();
  link.set("mode", page.mode);
  for (const [name, value] of Object.entries(page.texts)) if (value) link.set(name, value);
  for (const [field, value] of Object.entries(page.a)) if (value !== "") link.set(field, value);
  if (page.b) for (const [field, value] of Object.entries(page.b)) if (value !== page.a[field]) link.set(`b.${field}`, value);
  if (page.b) link.set("compare", "1");
  if (page.view !== "order") link.set("view", page.view);
  return `#${link}`;
}

export function fromHash(hash) {
  const link = new URLSearchParams(hash.slice(1)), a = {}, b = {}, rest = {};
  const known = new Set(FIELDS.map(([field]) => field));
  for (const [name, value] of link) {
    if (known.has(name)) a[name] = value;
    else if (name.startsWith("b.") && known.has(name.slice(2))) b[name.slice(2)] = value;
    else rest[name] = value;
  }
  return { a, b: { ...a, ...b }, rest, empty: !hash.slice(1) };
}
