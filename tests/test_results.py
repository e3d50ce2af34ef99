"""Pages and cards are made from the files of results, whatever could be measured."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from captioner import shipped

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
import results_page  # noqa: E402
from pretrained.cards import card  # noqa: E402


@pytest.mark.parametrize("name", shipped.models())
def test_a_card_is_made_from_the_files(name):
    written = (shipped.models()[name] / "README.md").read_text("utf-8")
    assert written == card(name, ROOT / "docs" / "results")


def test_without_java_there_are_dashes_instead_of_meteor(tmp_path):
    shutil.copytree(ROOT / "docs" / "results", tmp_path / "results")

    for file in (tmp_path / "results").glob("*.json"):
        record = json.loads(file.read_text("utf-8"))
        designs = record.get("designs", {}).values()
        for scored in (record, *designs, *record.get("searches", [])):
            if "tokenizer" in scored.get("scores", {}):
                scored["scores"]["meteor"] = None
        file.write_text(json.dumps(record), "utf-8")
    dashes = results_page.page(tmp_path / "results")
    assert len(dashes.splitlines()) == len(results_page.page().splitlines())
    for name in shipped.models():
        row = next(line for line in dashes.splitlines() if line.startswith(f"| {name} |"))
        cells = [cell.strip() for cell in row.split("|")]
        assert cells[8] == "–"
        assert "–" not in cells[4:8]
        assert "| – |" in card(name, tmp_path / "results")


def test_speed_on_another_machine_stands_below(tmp_path):
    shutil.copytree(ROOT / "docs" / "results", tmp_path / "results")
    record = json.loads((tmp_path / "results" / "speed-memory.json").read_text("utf-8"))
    before = results_page.page(tmp_path / "results").splitlines()
    record["machine"] = "an abacus"
    record["rows"][0]["seconds"] = 123456
    (tmp_path / "results" / "speed-memory-on-beads.json").write_text(json.dumps(record), "utf-8")
    after = results_page.page(tmp_path / "results").splitlines()
    added = [line for line in after if line not in before]
    assert len(added) == 2
    assert added[0].endswith(", an abacus.")
    assert "| 123456 |" in added[1]
    ours = next(number for number, line in enumerate(before) if record["command"] in line)
    assert after[: ours + 1] == before[: ours + 1]
    assert after.index(added[0]) > ours + len(record["rows"])
