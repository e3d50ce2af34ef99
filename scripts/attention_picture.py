"""Draws docs/images/attention.png: a generated scene, and where a captioner looked for each word.

captioner fit --config configs/shapes.yaml
python scripts/attention_picture.py --model runs/shapes --output docs/images/attention.png
"""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

import captioner
from captioner.data.shapes import scene, true_of

TILE, GAP, LINE = 168, 10, 24
HELD_OUT = 3  # a seed that no training uses


def overlay(picture: Image.Image, weights: np.ndarray, brightest: float) -> Image.Image:
    """The picture dimmed where the model did not look; one scale for all words of a caption."""
    light = Image.fromarray((255 * np.clip(weights / brightest, 0, 1)).astype(np.uint8))
    # Smooth for the eye only; the grid itself is coarse.
    mask = light.resize(picture.size, Image.Resampling.BICUBIC)
    dark = Image.eval(picture, lambda value: value // 4)
    return Image.composite(picture, dark, mask)


def figure(caption: captioner.Caption, picture: Image.Image) -> Image.Image:
    """The picture, then a tile for each word."""
    picture = picture.resize((TILE, TILE), Image.Resampling.LANCZOS)
    brightest = float(caption.weights.max())
    tiles = [(picture, "")]
    tiles += [
        (overlay(picture, weights, brightest), word)
        for word, weights in zip(caption.words, caption.weights, strict=True)
    ]
    columns = min(len(tiles), 6)
    rows = -(-len(tiles) // columns)
    step = TILE + GAP
    canvas = Image.new("RGB", (columns * step + GAP, rows * (step + LINE) + GAP), "white")
    draw = ImageDraw.Draw(canvas)
    font = ImageFont.load_default(18)
    for number, (tile, word) in enumerate(tiles):
        x, y = GAP + number % columns * step, GAP + number // columns * (step + LINE)
        draw.text((x + TILE / 2, y), word, fill="black", font=font, anchor="ma")
        canvas.paste(tile, (x, y + LINE))
    return canvas


def main() -> None:
    """Takes the first held-out scene of three colours whose caption is true and names two things."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    model = captioner.load(options.model)
    for index in range(1, 200):
        drawn = scene(HELD_OUT, index)
        caption = model.caption(drawn.image)
        two = len({thing.colour for thing in drawn.things} & set(caption.words)) >= 2
        if (
            len({thing.colour for thing in drawn.things}) == 3
            and two
            and true_of(caption.text, drawn.things)
        ):
            figure(caption, drawn.image).save(options.output)
            print(f"scene {index}: {caption.text}")
            return
    raise SystemExit("no fitting scene among 200")


if __name__ == "__main__":
    main()
