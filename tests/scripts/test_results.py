"""The results page and the model cards are made from the files in docs/results."""

import shutil
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from captioner import resources

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
OTHER_PAGES = {"attention-worth.json", "explanations.json"}
sys.path.insert(0, str(ROOT / "scripts"))
import results_page  # noqa: E402
import train_pretrained  # noqa: E402
from pretrained import recipes  # noqa: E402
from pretrained.cards import card  # noqa: E402


@pytest.fixture
def results(tmp_path):
    """A copy of docs/results to change."""
    return shutil.copytree(RESULTS, tmp_path / "results")


@pytest.mark.parametrize("name", resources.bundled_models())
def test_the_cards_are_up_to_date(name):
    written = (resources.bundled_models()[name] / "README.md").read_text("utf-8")
    assert written == card(name, RESULTS)


def test_the_page_uses_every_file(results):
    page = results_page.page(results)
    for file in sorted(results.glob("*.json")):
        if file.name in OTHER_PAGES:
            continue
        moved = file.rename(file.with_suffix(".away"))
        with suppress(KeyError):  # the page cannot be made without the file
            assert results_page.page(results) != page, f"{file.name} is in no table"
        moved.rename(file)


def test_boxes_are_asked_for_before_a_long_training(capsys):
    with pytest.raises(SystemExit):
        train_pretrained.main(["train", "luong-dot", "--root", "DIR", "--coco", "DIR"])
    assert "give --entities DIR" in capsys.readouterr().err
    given = recipes.options("boxes-1", recipes.Folders(entities=Path("boxes")))
    assert given[given.index("--data.entities") + 1] == "boxes"
    assert "--data.entities" not in recipes.options("luong", recipes.Folders())
