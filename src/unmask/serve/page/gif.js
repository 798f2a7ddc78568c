// A GIF from frames of colours: its palette, the parts that changed, and LZW. Nothing here needs a page: tests run it in node.

const COLOURS = 255; // the last entry of the palette is left for "as before"
const SEEN = 5; // bits of each channel that tell colours apart

const bin = (r, g, b) => ((r >> (8 - SEEN)) << (2 * SEEN)) | ((g >> (8 - SEEN)) << SEEN) | (b >> (8 - SEEN));

// The most frequent colours of some frames (RGBA), and which of them is nearest to any colour.
export function makePalette(frames) {
  const bins = new Map(); // bin -> [count, r, g, b]
  for (const data of frames) {
    for (let i = 0; i < data.length; i += 4) {
      const key = bin(data[i], data[i + 1], data[i + 2]);
      const entry = bins.get(key);
      if (entry) entry[0]++;
      else bins.set(key, [1, data[i], data[i + 1], data[i + 2]]);
    }
  }
  const colours = [...bins.values()].sort((a, b) => b[0] - a[0]).slice(0, COLOURS).map(([, ...rgb]) => rgb);
  const known = new Int16Array(1 << (3 * SEEN)).fill(-1);
  function nearest(r, g, b) {
    const key = bin(r, g, b);
    if (known[key] >= 0) return known[key];
    let best = 0, least = Infinity;
    colours.forEach((colour, i) => {
      const distance = (colour[0] - r) ** 2 + (colour[1] - g) ** 2 + (colour[2] - b) ** 2;
      if (distance < least) { least = distance; best = i; }
    });
    return (known[key] = best);
  }
  function indices(data) {
    const result = new Uint8Array(data.length / 4);
    for (let i = 0; i < result.length; i++) result[i] = nearest(data[4 * i], data[4 * i + 1], data[4 * i + 2]);
    return result;
  }
  return { colours, indices };
}

// The smallest rectangle outside of which two frames are equal; one pixel where they are equal everywhere.
function changed(before, after, width, height) {
  if (!before) return [0, 0, width, height];
  let left = width, right = 0, top = height, bottom = 0;
  for (let y = 0, i = 0; y < height; y++) {
    for (let x = 0; x < width; x++, i++) {
      if (before[i] === after[i]) continue;
      if (x < left) left = x;
      if (x >= right) right = x + 1;
      if (y < top) top = y;
      bottom = y + 1;
    }
  }
  return right ? [left, top, right - left, bottom - top] : [0, 0, 1, 1];
}

// Frames of indices, each shown for so many hundredths of a second; it begins again at the end.
export function makeGif(width, height, colours) {
  const bytes = [];
  const word = (value) => bytes.push(value & 255, value >> 8);
  const ascii = (text) => bytes.push(...[...text].map((letter) => letter.charCodeAt(0)));
  ascii("GIF89a");
  word(width); word(height);
  bytes.push(0xf7, 0, 0); // a palette of 256 colours
  for (let i = 0; i < 256; i++) bytes.push(...(colours[i] ?? [0, 0, 0]));
  bytes.push(0x21, 0xff, 11);
  ascii("NETSCAPE2.0");
  bytes.push(3, 1, 0, 0, 0); // for ever
  let last = null;

  function add(indices, hundredths) {
    const [x, y, w, h] = changed(last, indices, width, height);
    bytes.push(0x21, 0xf9, 4, 0x04, hundredths & 255, hundredths >> 8, 0, 0, 0x2c); // what was drawn before stays
    for (const value of [x, y, w, h]) word(value);
    bytes.push(0, 8);
    const part = new Uint8Array(w * h);
    for (let row = 0; row < h; row++) part.set(indices.subarray((y + row) * width + x, (y + row) * width + x + w), row * w);
    const packed = lzw(part);
    for (let at = 0; at < packed.length; at += 255) {
      const block = packed.slice(at, at + 255);
      bytes.push(block.length, ...block);
    }
    bytes.push(0);
    last = indices;
  }
  const finish = () => Uint8Array.from([...bytes, 0x3b]);
  return { add, finish };
}

// LZW as GIF has it: codes of 9 to 12 bits, least significant bit first.
function lzw(indices) {
  const CLEAR = 256, END = 257, out = [];
  let size = 9, next = 258, table = new Map(), held = 0, count = 0;
  const emit = (code) => {
    held |= code << count;
    for (count += size; count >= 8; count -= 8) { out.push(held & 255); held >>>= 8; }
  };
  emit(CLEAR);
  let prefix = indices[0];
  for (let i = 1; i < indices.length; i++) {
    const key = (prefix << 8) | indices[i], code = table.get(key);
    if (code !== undefined) { prefix = code; continue; }
    emit(prefix);
    prefix = indices[i];
    if (next === 4096) { emit(CLEAR); size = 9; next = 258; table = new Map(); continue; }
    if (next === 1 << size) size++;
    table.set(key, next++);
  }
  emit(prefix);
  if (next === 1 << size && size < 12) size++;
  emit(END);
  if (count) out.push(held & 255);
  return out;
}
