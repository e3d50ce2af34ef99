"use strict";
// One map at a time: cells → values → colours on a canvas over the photo. The smoothing is that of
// captioner/overlay/colours.py; the numbers are the model's own, untouched.
const { table, sigma, mark } = JSON.parse(document.getElementById("colours").textContent);
const opacity = document.getElementById("opacity");
const LONGEST = 768; // of the canvas, in pixels
const WORD_MS = 900;

const kernels = {
  none: (away) => (away <= 0.5 ? 1 : 0),
  gaussian: (away) => Math.exp(-((away / sigma) ** 2) / 2),
  bicubic: (away) =>
    away < 1 ? (1.5 * away - 2.5) * away ** 2 + 1
    : away < 2 ? ((-0.5 * away + 2.5) * away - 4) * away + 2 : 0,
};

// For every pixel along one axis, how much of each cell it shows; the shares sum to 1.
function shares(pixels, cells, kernel) {
  return Array.from({ length: pixels }, (_, pixel) => {
    const place = ((pixel + 0.5) * cells) / pixels;
    const row = Float64Array.from({ length: cells }, (_, cell) => kernel(Math.abs(place - cell - 0.5)));
    const sum = row.reduce((a, b) => a + b);
    return row.map((share) => share / sum);
  });
}

class Caption {
  constructor(article) {
    this.data = JSON.parse(article.querySelector(".data").textContent);
    this.buttons = [...article.querySelectorAll(".words button:not(.play)")];
    this.play = article.querySelector(".play");
    this.live = article.querySelector(".live");
    this.top = article.querySelector(".top");
    this.even = article.querySelector(".even");
    this.canvas = article.querySelector("canvas");
    const [width, height] = this.data.size;
    const factor = LONGEST / Math.max(width, height);
    this.canvas.width = Math.max(1, Math.round(width * factor));
    this.canvas.height = Math.max(1, Math.round(height * factor));
    article.querySelector(".photo").style.setProperty("--ratio", width / height);
    const kernel = kernels[this.data.smoothing];
    this.down = shares(this.canvas.height, this.data.rows, kernel);
    this.right = shares(this.canvas.width, this.data.columns, kernel);
    this.shown = null;
    this.listen();
    this.draw();
  }

  listen() {
    this.buttons.forEach((button, index) => {
      button.addEventListener("pointerenter", () => this.stop(index));
      button.addEventListener("focus", () => this.show(index));
      button.addEventListener("click", () => this.stop(index));
      button.addEventListener("keydown", (event) => {
        const to = { ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: this.buttons.length - 1 }[event.key];
        if (this.buttons[to]) {
          event.preventDefault();
          this.buttons[to].focus();
        }
      });
    });
    this.play.addEventListener("click", () => (this.timer ? this.stop(this.shown) : this.start()));
  }

  start() {
    let next = 0;
    this.play.setAttribute("aria-pressed", "true");
    this.live.setAttribute("aria-live", "off"); // too fast to be read out
    const step = () => this.show(next++ % this.buttons.length);
    this.timer = setInterval(step, WORD_MS);
    step();
  }

  stop(index) {
    clearInterval(this.timer);
    this.timer = null;
    this.play.setAttribute("aria-pressed", "false");
    this.live.setAttribute("aria-live", "polite");
    this.show(index);
  }

  show(index) {
    this.shown = index;
    this.buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === index)));
    this.live.textContent = index === null ? "No word chosen." : this.data.words[index].told;
    this.draw();
  }

  draw() {
    const own = document.querySelector("[name=scale]:checked").value === "own";
    const word = this.data.words[this.shown];
    const greatest = own && word ? word.top : Math.max(...this.data.words.map((each) => each.top));
    this.top.textContent = own ? (word ? `own: ${greatest.toPrecision(2)}` : "own") : greatest.toPrecision(2);
    const even = 1 / (this.data.rows * this.data.columns) / greatest;
    this.even.hidden = own || !(even > 0.15 && even < 0.75); // or it would run into the others
    this.even.style.left = `${100 * even}%`;
    const context = this.canvas.getContext("2d");
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    if (word) {
      context.putImageData(this.heat(word.weights, greatest), 0, 0);
      this.mark(context, word);
    }
  }

  heat(weights, greatest) {
    const { width, height } = this.canvas;
    const { rows, columns } = this.data;
    const image = new ImageData(width, height);
    const alpha = Math.round(2.55 * opacity.value);
    const wide = Array.from({ length: rows }, (_, row) =>
      Float64Array.from({ length: width }, (_, x) => {
        let sum = 0;
        for (let column = 0; column < columns; column++) sum += this.right[x][column] * weights[row * columns + column];
        return sum;
      }));
    for (let y = 0, at = 0; y < height; y++) {
      for (let x = 0; x < width; x++, at += 4) {
        let value = 0;
        for (let row = 0; row < rows; row++) value += this.down[y][row] * wide[row][x];
        const level = greatest > 0 ? Math.round(255 * Math.min(1, Math.max(0, value / greatest))) : 0;
        image.data.set(table[level], at);
        image.data[at + 3] = alpha;
      }
    }
    return image;
  }

  // Outlines and the centre of local attention, with a dark rim that keeps them visible.
  mark(context, { lines, centre }) {
    const { width, height } = this.canvas;
    const across = width / this.data.columns, down = height / this.data.rows, arm = 14;
    const strokes = lines.map(([x, y, u, v]) => [x * across, y * down, u * across, v * down]);
    if (centre) {
      const x = centre[0] * across, y = centre[1] * down;
      strokes.push([x - arm, y, x + arm, y], [x, y - arm, x, y + arm]);
    }
    for (const [colour, thickness] of [["black", 9], [mark, 4]]) {
      context.strokeStyle = colour;
      context.lineWidth = thickness;
      context.lineCap = "square";
      context.beginPath();
      for (const [x, y, u, v] of strokes) {
        context.moveTo(x, y);
        context.lineTo(u, v);
      }
      context.stroke();
    }
  }
}

const captions = [...document.querySelectorAll("article")].map((article) => new Caption(article));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") captions.forEach((caption) => caption.stop(null));
});
document.querySelector("form").addEventListener("input", () => {
  document.querySelector("output").textContent = `${opacity.value} %`;
  captions.forEach((caption) => caption.draw());
});
document.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
