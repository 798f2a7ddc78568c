// Part of a text as a gap, so that it can be rewritten; the other pieces are joined unchanged.

// Bytes of half a character are shown as ⟨f0 9f⟩; side by side they are a character again.
const BYTES = /(?:⟨[0-9a-f]{2}(?: [0-9a-f]{2})*⟩)+/g;
export const whole = (text) => text.replace(BYTES, (run) => new TextDecoder().decode(Uint8Array.from(run.match(/[0-9a-f]{2}/g), (hex) => parseInt(hex, 16))));

// `pieces` with the tokens from .. to (inclusive) as one gap, which grows where it would cut a character in two.
export function withGap(pieces, from, to) {
  const join = (start, end) => whole(pieces.slice(start, end).join(""));
  const cut = (text) => text.includes("\ufffd");
  while (from > 0 && cut(join(0, from))) from--;
  while (to < pieces.length - 1 && cut(join(to + 1))) to++;
  return { before: join(0, from), after: join(to + 1), size: to - from + 1 };
}
