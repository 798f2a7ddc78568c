// The likelihood view: each token with the bound on its surprise, as a heat map.

const EDGES = [0.5, 2, 4, 6, 9]; // bits: where one bin ends and the next begins
const heat = (bits) => EDGES.filter((edge) => bits >= edge).length; // 0: expected, 5: a surprise
const number = (value, digits) => (Number.isFinite(value) ? value.toFixed(digits) : "∞");

// [[piece, nats or null]] and the totals, from what /v1/score answers for one text.
export function readScore({ texts: [one] }) {
  const tokens = one.pieces.map((piece, i) => [piece, one.token_nats[i] ?? null]);
  return { tokens, nats: one.nats, count: one.tokens, perByte: one.bits_per_byte ?? null, error: one.stderr_nats ?? null };
}

export function showScore(section, score, words, exact) {
  const perToken = score.nats / Math.max(1, score.count), bits = perToken / Math.LN2;
  const figures = [
    [number(Math.exp(perToken), 2), score.error ? `perplexity, ± ${number(Math.exp(perToken) * score.error, 2)}` : "perplexity"], [number(bits, 3), "bits per token"],
    ...(score.perByte === null ? [] : [[number(score.perByte, 3), "bits per byte"]]),
    [number(score.nats, 1), "nats in total"], [score.count.toLocaleString("en"), score.count === 1 ? "token" : "tokens"],
  ];
  const head = make("dl", "figures", ...figures.map(([value, name]) => make("div", "", make("dt", "", name), make("dd", "", value))));
  const canvas = make("div", `canvas heat${words.dna ? " letters bases" : ""}`);
  canvas.setAttribute("role", "group");
  canvas.setAttribute("aria-label", "Tokens and their surprise");
  const board = makeScoreBoard(canvas, score);
  const scale = Array.from({ length: 6 }, (_, i) => make("span", `k h${i}`, make("span", "", "\u2002\u2002")));
  const legend = make("p", "legend", make("span", "item scale", "expected", ...scale, "surprising"),
    make("span", "", exact ? "Exact: the surprise of each token given the tokens before it." : "An upper bound on the surprise, averaged over the orders in which the text could have been written."));
  section.replaceChildren(head, legend, canvas);
  return board;
}

// A board for the card: tokens can be pointed at, tapped and walked over as on the stage.
function makeScoreBoard(canvas, score) {
  const texts = joined(score.tokens.map(([piece]) => piece));
  const elements = score.tokens.map(([, nats], p) => {
    const element = make("span", `k ${nats === null ? "g" : `h${heat(nats / Math.LN2)}`}`, make("span", "", ...(texts[p] === "" ? [REST] : spellPiece(texts[p]))));
    return Object.assign(element, { p, board: null });
  });
  const facts = (p) => {
    const nats = score.tokens[p][1];
    return nats === null ? [["not scored", ""]] : [["nats", number(nats, 3)], ["bits", number(nats / Math.LN2, 2)], ["position", `${p + 1} of ${score.tokens.length}`]];
  };
  const board = {
    canvas, exists: (p) => p in elements, count: () => elements.length, element: (p) => elements[p],
    fill: (card, p) => {
      const [piece, nats] = score.tokens[p];
      const said = nats === null ? "given" : percent(Math.min(1, Math.exp(-nats)));
      card.replaceChildren(make("p", "head", make("span", "word", ...spellPiece(piece)), make("b", "", said)),
        make("p", "facts", ...facts(p).map(([name, value]) => make("span", "", `${name} `, make("b", "", value)))));
    },
    describe: (p) => [JSON.stringify(score.tokens[p][0]), ...facts(p).map((row) => row.join(" "))].join(", "),
  };
  for (const element of elements) element.board = board;
  if (elements.length) elements[0].tabIndex = 0;
  canvas.append(...elements);
  return board;
}
