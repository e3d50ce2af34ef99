"use strict";
// <attention-map>: a sentence and its photo, with the map of one word on a canvas over it, in the HTML
// export and in the app. The smoothing is the same as in captioner/overlay/heatmap.py.
const MAP_SIDE = 768, TILE_SIDE = 240; // longest sides of the canvases, in pixels
const WORD_MS = 900;
const lastWords = new Map(); // the word shown last for each sentence, for maps that are drawn again

const kernels = {
  none: (distance) => (distance <= 0.5 ? 1 : 0),
  gaussian: (distance, sigma) => Math.exp(-((distance / sigma) ** 2) / 2),
  bicubic: (d) => // Keys 1981 with a = -1/2, as in Pillow
    d < 1 ? (1.5 * d - 2.5) * d ** 2 + 1
    : d < 2 ? ((-0.5 * d + 2.5) * d - 4) * d + 2 : 0,
};

// The weight of each cell at each pixel along one axis; the weights of a pixel sum to 1.
function kernelMatrix(pixels, cells, kernel) {
  return Array.from({ length: pixels }, (_, pixel) => {
    const center = ((pixel + 0.5) * cells) / pixels;
    const row = Float64Array.from({ length: cells }, (_, cell) => kernel(Math.abs(center - cell - 0.5)));
    const sum = row.reduce((a, b) => a + b);
    return row.map((weight) => weight / sum);
  });
}

class Surface {
  constructor(canvas, data, longestSide) {
    const [width, height] = data.size;
    const factor = longestSide / Math.max(width, height);
    canvas.width = Math.max(1, Math.round(width * factor));
    canvas.height = Math.max(1, Math.round(height * factor));
    const kernel = (distance) => kernels[data.smoothing](distance, data.sigma);
    Object.assign(this, { canvas, data });
    this.vertical = kernelMatrix(canvas.height, data.rows, kernel);
    this.horizontal = kernelMatrix(canvas.width, data.columns, kernel);
  }

  // Draws the map of a word, or nothing; colours go from `low` to `peak`.
  draw(word, peak, opacity) {
    const context = this.canvas.getContext("2d");
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    if (!word) return;
    if (this.data.boxes) return this.drawBoxes(context, word.weights, peak, opacity);
    context.putImageData(this.colorize(word.weights, peak, opacity), 0, 0);
    this.drawOutlines(context, word);
  }

  colorize(weights, peak, opacity) {
    const { width, height } = this.canvas;
    const { rows, columns, low, table } = this.data;
    const image = new ImageData(width, height);
    const resizedRows = Array.from({ length: rows }, (_, row) =>
      Float64Array.from({ length: width }, (_, x) => {
        let sum = 0;
        for (let column = 0; column < columns; column++) sum += this.horizontal[x][column] * weights[row * columns + column];
        return sum;
      }));
    for (let y = 0, offset = 0; y < height; y++) {
      for (let x = 0; x < width; x++, offset += 4) {
        let value = 0;
        for (let row = 0; row < rows; row++) value += this.vertical[y][row] * resizedRows[row][x];
        const level = peak > low ? Math.min(1, Math.max(0, (value - low) / (peak - low))) : 0;
        image.data.set(table[Math.round(255 * level)], offset);
        image.data[offset + 3] *= opacity;
      }
    }
    return image;
  }

  // Draws the boxes of a detector's regions, the strongest last: a tint, and an outline of that strength.
  drawBoxes(context, weights, peak, opacity) {
    const { width, height } = this.canvas;
    const { boxes, low, table, mark, look } = this.data;
    const level = (weight) => (peak > low ? Math.min(1, Math.max(0, (weight - low) / (peak - low))) : 0);
    const fill = ([r, g, b, a], box) => {
      context.clearRect(...box);
      context.fillStyle = `rgb(${r} ${g} ${b} / ${(a / 255) * opacity})`;
      context.fillRect(...box);
    };
    if (look === "paper") fill(table[0], [0, 0, width, height]);
    const order = [...weights.keys()].sort((i, j) => weights[i] - weights[j]);
    const corners = boxes.map(([left, top, right, bottom]) =>
      [left * width, top * height, right * width, bottom * height].map(Math.round));
    const rectangles = corners.map(([left, top, right, bottom]) => [left, top, right - left, bottom - top]);
    for (const i of order) fill(table[Math.round(255 * level(weights[i]))], rectangles[i]);
    const thickness = Math.max(width, height) / 140;
    for (const i of order) {
      context.globalAlpha = level(weights[i]);
      for (const [color, line] of [["black", 2 * thickness], [mark, thickness]]) {
        context.strokeStyle = color;
        context.lineWidth = line;
        context.strokeRect(...rectangles[i]);
      }
    }
    context.globalAlpha = 1;
  }

  // Draws outlines on a wider black line, so that they stay visible.
  drawOutlines(context, { lines }) {
    const { width, height } = this.canvas;
    const scaleX = width / this.data.columns, scaleY = height / this.data.rows;
    const thickness = Math.max(width, height) / 140;
    for (const [color, width] of [["black", 2 * thickness], [this.data.mark, thickness]]) {
      context.strokeStyle = color;
      context.lineWidth = width;
      context.lineCap = "round";
      context.beginPath();
      for (const [x, y, u, v] of lines) {
        context.moveTo(x * scaleX, y * scaleY);
        context.lineTo(u * scaleX, v * scaleY);
      }
      context.stroke();
    }
  }
}

class AttentionMap extends HTMLElement {
  static observedAttributes = ["data-caption"];

  // A page that changes the element in place gets a new one, without the state of the old sentence.
  attributeChangedCallback(_, before) {
    if (before !== null) queueMicrotask(() => this.replaceWith(this.cloneNode(true)));
  }

  connectedCallback() {
    this.data = JSON.parse(this.dataset.caption);
    this.opacity = this.data.opacity;
    this.own = this.data.own;
    this.buttons = [...this.querySelectorAll(".words .word")];
    this.tiles = [...this.querySelectorAll(".tiles figure")];
    this.live = this.querySelector(".live");
    const [width, height] = this.data.size;
    const photo = this.querySelector(".photo");
    this.style.setProperty("--ratio", width / height);
    photo.classList.toggle("gray", this.data.look === "paper");
    this.surface = new Surface(photo.querySelector("canvas"), this.data, MAP_SIDE);
    this.tileSurfaces = this.tiles.map((tile) => {
      tile.querySelector("img").src = photo.querySelector("img").src;
      return new Surface(tile.querySelector("canvas"), this.data, TILE_SIDE);
    });
    const colors = this.data.table.map(([r, g, b, a]) => `rgb(${r} ${g} ${b} / ${a / 255})`);
    this.querySelector(".bar").style.backgroundImage = `linear-gradient(to right, ${colors.filter((_, i) => i % 15 === 0)})`;
    this.listen();
    this.shown = lastWords.get(this.data.text) ?? this.data.start;
    this.draw();
  }

  disconnectedCallback() {
    clearInterval(this.timer);
  }

  listen() {
    this.buttons.forEach((button, index) => {
      button.addEventListener("pointerenter", () => this.stop(index));
      button.addEventListener("focus", () => this.show(index));
      button.addEventListener("click", () => this.stop(index));
      button.addEventListener("keydown", (event) => {
        const target = { ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: this.buttons.length - 1 }[event.key];
        if (this.buttons[target]) {
          event.preventDefault();
          this.buttons[target].focus();
        }
      });
    });
    this.tiles.forEach((tile) => tile.addEventListener("click", () => this.stop(Number(tile.dataset.word))));
    this.play = this.querySelector(".play");
    this.play.addEventListener("click", () => (this.timer ? this.stop(this.before) : this.start()));
    const copy = this.querySelector(".copy");
    copy.addEventListener("click", async () => {
      copy.textContent = (await copyText(this.data.text)) ? "Copied" : "Press Ctrl+C";
      setTimeout(() => (copy.textContent = "Copy"), 2000);
    });
  }

  start() {
    let next = 0;
    this.before = this.shown;
    this.play.textContent = "Stop";
    this.live.setAttribute("aria-live", "off"); // the words change too fast to be read out
    const step = () => this.show(next++ % this.buttons.length);
    this.timer = setInterval(step, WORD_MS);
    step();
  }

  stop(index) {
    clearInterval(this.timer);
    this.timer = null;
    this.play.textContent = "Play";
    this.live.setAttribute("aria-live", "polite");
    this.show(index);
  }

  show(index) {
    this.shown = index;
    lastWords.set(this.data.text, index);
    this.buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === index)));
    this.tiles.forEach((tile) => tile.classList.toggle("shown", Number(tile.dataset.word) === index));
    this.live.textContent = index === null ? "No word chosen." : this.data.words[index].description;
    this.drawWord(this.surface, index);
    const own = this.own ? "own" : `${this.data.peak.toPrecision(2)} or more`;
    const peak = this.own && index !== null ? `own: ${this.data.words[index].peak.toPrecision(2)}` : own;
    this.querySelector(".peak").textContent = peak;
  }

  drawWord(surface, index) {
    const word = this.data.words[index];
    surface.draw(word, this.own && word ? word.peak : this.data.peak, this.opacity);
  }

  draw() {
    this.show(this.shown);
    this.tiles.forEach((tile, i) => this.drawWord(this.tileSurfaces[i], Number(tile.dataset.word)));
  }
}

// Copies through a selection where the clipboard is not available, as on pages without HTTPS.
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = Object.assign(document.createElement("textarea"), { value: text });
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") document.querySelectorAll("attention-map").forEach((map) => map.stop(null));
});
customElements.define("attention-map", AttentionMap);
