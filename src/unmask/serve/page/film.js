// The stage as a film: what stands on the page at some of the steps, drawn on a canvas and packed as a GIF.
import { makeGif, makePalette } from "./gif.js";

const FRAMES = 60, SAMPLES = 5; // frames of a film at most; frames that the palette is made from
const FIRST = 70, LAST = 250, ALL = 600; // hundredths of a second: of the first frame, the last one, and those between
const EDGE = 16, LARGEST = 4_000_000; // pixels around the text; pixels of a frame at most

// The text nodes of an element with the place of each line of theirs.
function* lines(element) {
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT), range = document.createRange();
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    range.selectNodeContents(node);
    const boxes = range.getClientRects();
    if (boxes.length === 1) { yield [node, node.data, boxes[0]]; continue; }
    for (let i = 0; i < node.length; i++) { // it is broken into lines: letter by letter
      range.setStart(node, i);
      range.setEnd(node, i + 1);
      const box = range.getClientRects()[0];
      if (box) yield [node, node.data[i], box];
    }
  }
}

function drawText(paint, element, at) {
  for (const [node, text, box] of lines(element)) {
    const style = getComputedStyle(node.parentElement);
    if (style.visibility === "hidden" || !text.trim()) continue;
    paint.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
    paint.fillStyle = style.color;
    const { fontBoundingBoxAscent: up, fontBoundingBoxDescent: down } = paint.measureText(text);
    paint.fillText(text, ...at(box.left, box.top + (box.height - up - down) / 2 + up));
  }
}

function drawToken(paint, element, at) {
  if (element.classList.contains("x")) return;
  const style = getComputedStyle(element), thick = parseFloat(style.textDecorationThickness);
  for (const box of element.getClientRects()) {
    const [x, y] = at(box.left, box.top);
    paint.fillStyle = style.backgroundColor;
    paint.beginPath();
    paint.roundRect(x, y, box.width, box.height, 5);
    paint.fill();
    if (style.textDecorationLine !== "underline" || !(thick > 0)) continue;
    paint.strokeStyle = style.textDecorationColor;
    paint.lineWidth = thick;
    paint.setLineDash({ dotted: [thick, 2 * thick], dashed: [3 * thick, 2 * thick], wavy: [2 * thick, thick] }[style.textDecorationStyle] ?? []);
    paint.beginPath();
    paint.moveTo(x, y + box.height - thick / 2);
    paint.lineTo(x + box.width, y + box.height - thick / 2);
    paint.stroke();
  }
  drawText(paint, element, at);
}

function draw(paint, section, at) {
  const paper = getComputedStyle(document.body).backgroundColor;
  paint.fillStyle = paper;
  paint.fillRect(0, 0, paint.canvas.width, paint.canvas.height);
  for (const box of section.querySelectorAll(".canvas")) {
    const { left, top, width, height } = box.getBoundingClientRect(), style = getComputedStyle(box);
    paint.fillStyle = style.backgroundColor;
    paint.strokeStyle = style.borderTopColor;
    paint.lineWidth = 1;
    paint.setLineDash([]);
    paint.beginPath();
    paint.roundRect(...at(left, top), width, height, 14);
    paint.fill();
    paint.stroke();
  }
  for (const title of section.querySelectorAll(".run > header, .caption")) drawText(paint, title, at);
  for (const token of section.querySelectorAll(".canvas .k")) drawToken(paint, token, at);
}

// `show(k)` puts step k of `count` on the page; the page is as before when the film is made.
export async function makeFilm(section, count, show) {
  const frame = section.getBoundingClientRect();
  const width = Math.ceil(frame.width) + 2 * EDGE, height = Math.ceil(frame.height) + 2 * EDGE;
  if (width * height > LARGEST) throw new Error("This text is too long for a film; save the replay instead.");
  const paint = Object.assign(document.createElement("canvas"), { width, height }).getContext("2d", { willReadFrequently: true });
  const pixels = async (k) => {
    show(k);
    await new Promise((done) => setTimeout(done, 0)); // the page stays alive
    const { left, top } = section.getBoundingClientRect(); // it may have been scrolled
    draw(paint, section, (x, y) => [x - left + EDGE, y - top + EDGE]);
    return paint.getImageData(0, 0, width, height).data;
  };
  const spread = (n) => [...new Set(Array.from({ length: n + 1 }, (_, i) => Math.round((i * count) / n)))];
  const samples = [];
  for (const k of spread(Math.min(count, SAMPLES) || 1)) samples.push(await pixels(k));
  const palette = makePalette(samples), gif = makeGif(width, height, palette.colours);
  const steps = spread(Math.min(count, FRAMES) || 1), each = Math.max(8, Math.min(40, Math.round(ALL / steps.length)));
  for (const [i, k] of steps.entries()) gif.add(palette.indices(await pixels(k)), i + 1 === steps.length ? LAST : i ? each : FIRST);
  return gif.finish();
}
