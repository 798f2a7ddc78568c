// What can be saved: the trace as JSON (docs/replay.md), and the replay as one HTML file. Both are made in the browser.

// One trace of all runs. Two models may give one id to two pieces: the second model's tokens then get new ids.
export function traceOf(runs) {
  const pieces = {}, special = new Set(), sequences = [];
  const mask = runs[0].words.mask;
  let next = 2_000_000_000;
  for (const run of runs) {
    const same = new Map([[run.words.mask, mask]]);
    const id = (token) => {
      if (!same.has(token)) {
        const piece = run.words.piece(token), free = token !== mask && (pieces[token] === undefined || pieces[token] === piece);
        same.set(token, free ? token : next++);
      }
      const shared = same.get(token);
      pieces[shared] ??= run.words.piece(token);
      if (run.words.special.has(token)) special.add(shared);
      return shared;
    };
    id(run.words.mask);
    for (const sequence of run.traced())
      sequences.push({
        ...sequence,
        canvas: sequence.canvas.map(id),
        events: sequence.events.map((event) => ({
          ...event,
          changes: event.changes.map(([p, token, prob, tops]) => (tops ? [p, id(token), prob, tops.map(([other, chance]) => [id(other), chance])] : [p, id(token), prob])),
        })),
      });
  }
  const protocol = runs.length === 1 ? runs[0].protocol : { model: runs.map((run) => run.protocol.model).join(" and "), ...Object.fromEntries(runs.map((run) => [`settings ${run.label}`, JSON.stringify(run.protocol)])) };
  return { format: "unmask-trace/1", mask, special: [...special].sort((a, b) => a - b), pieces, protocol, sequences };
}

const escapeHtml = (text) => text.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
// JSON that can stand inside a script element: no text in it can end the element or begin a comment.
export const dataBlock = (data) => JSON.stringify(data).replace(/[<>&\u2028\u2029]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);

// The shell has three places to fill; in one pass, so that a text with {{data}} in it stays text.
export function fillShell(shell, trace) {
  const parts = {
    title: escapeHtml(String(trace.protocol.model ?? "Masks become words")),
    data: dataBlock(trace),
    texts: trace.sequences.map(({ text }) => `<pre>${escapeHtml(text)}</pre>`).join(""),
  };
  return shell.replace(/\{\{(title|data|texts)\}\}/g, (_, name) => parts[name]);
}

export function save(name, text, kind) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: kind }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
