"""Take docs/images/app.png: a screenshot of the app as it opens, with its first example.

python scripts/app_picture.py --output docs/images/app.png
"""

import argparse
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import ViewportSize, sync_playwright

from captioner.app.served_models import Models
from captioner.app.server import serving

SIZE: ViewportSize = {"width": 1400, "height": 900}


def main() -> None:
    """Open the app in Chromium and take the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    with serving(Models()) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport=SIZE)
        page.goto(url)
        page.locator("attention-map .word").first.wait_for(timeout=120_000)
        page.wait_for_timeout(1000)  # until everything is in its place
        page.screenshot(path=options.output)
    Image.open(options.output).convert("RGB").quantize(256).save(options.output, optimize=True)


if __name__ == "__main__":
    main()
