"""Takes docs/images/app.png: the app with a generated scene and one word chosen, in a real browser.

captioner fit --config configs/shapes.yaml
python scripts/app_picture.py --model runs/shapes --output docs/images/app.png
"""

import argparse
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import ViewportSize, sync_playwright

from captioner.data.grammar import true_of
from captioner.data.shapes import Scene, scene
from captioner.predictor import Caption
from captioner.ui import HELD_OUT, serving
from captioner.ui_models import Models, read

SIZE: ViewportSize = {"width": 1280, "height": 960}


def looked_at(caption: Caption, drawn: Scene) -> list[int]:
    """The nouns (by number) for which two thirds of the look are on the thing that is meant."""
    found = []
    for thing, mask in zip(drawn.things, drawn.masks, strict=True):
        cells = caption.geometry.to_grid(mask) > 0
        for n in range(1, len(caption.words)):
            if caption.words[n - 1 : n + 1] == (thing.colour, thing.shape):
                found += [n] if caption.weights[n][cells].sum() > 2 / 3 else []
    return sorted(found)


def main() -> None:
    """Shows the first held-out scene of three things whose caption is true and that was looked at."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append", required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--dark", action="store_true")
    options = parser.parse_args()
    models = Models(options.model)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "scene.png"
        for index in range(1, 201):
            drawn = scene(HELD_OUT, index, image_size=448)
            drawn.image.save(file)
            caption = models.caption(read(file))[0]
            found = looked_at(caption, drawn)
            if len(drawn.things) == 3 and found and true_of(caption.text, drawn.things):
                break
        else:
            raise SystemExit(
                f"{options.model[0]}: finds nothing it says in 200 generated scenes; "
                "give a model that was trained on them: captioner fit --config configs/shapes.yaml"
            )
        print(f"scene {index}: {caption.text}")
        with serving(models) as url, sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            page = browser.new_page(viewport=SIZE, color_scheme="dark" if options.dark else "light")
            page.set_default_timeout(120_000)
            page.goto(url)
            page.set_input_files("#photo input[type=file]", file)
            page.locator("#words-1 label").nth(found[-1]).click()
            page.locator("#facts-1 b", has_text=caption.words[found[-1]]).wait_for()
            page.mouse.move(0, 0)
            page.wait_for_timeout(1000)  # until spinners have faded
            page.screenshot(path=options.output)


if __name__ == "__main__":
    main()
