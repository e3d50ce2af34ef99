"""The results page and the model cards are made from the files in docs/results."""

import json
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from captioner import resources

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
sys.path.insert(0, str(ROOT / "scripts"))
import results_page  # noqa: E402
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
        moved = file.rename(file.with_suffix(".away"))
        with suppress(KeyError):  # the page cannot be made without the file
            assert results_page.page(results) != page, f"{file.name} is in no table"
        moved.rename(file)


def test_without_java_meteor_is_a_dash(results):
    for file in results.glob("*.json"):
        record = json.loads(file.read_text("utf-8"))
        designs = record.get("designs", {}).values()
        for scored in (record, *designs, *record.get("searches", [])):
            if "tokenizer" in scored.get("scores", {}):
                scored["scores"]["meteor"] = None
        file.write_text(json.dumps(record), "utf-8")
    dashes = results_page.page(results).splitlines()
    assert len(dashes) == len(results_page.page().splitlines())
    for name in resources.bundled_models():
        row = next(line for line in dashes if line.startswith(f"| [{name}](results/pretrained-"))
        cells = [cell.strip() for cell in row.split("|")]
        assert cells[6] == "–"
        assert "–" not in cells[2:6]
        assert "| – |" in card(name, results)
