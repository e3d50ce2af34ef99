"""Figures in the documentation come from result files, and its commands, files and links exist."""

import copy
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from captioner import resources
from captioner.cli import training
from captioner.cli.main import COMMANDS, main
from captioner.models import registry

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
CARDS = [folder / "README.md" for folder in resources.bundled_models().values()]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
README = (ROOT / "README.md").read_text("utf-8")
ATTENTION, ARCHITECTURE = (
    (ROOT / "docs" / f"{name}.md").read_text("utf-8") for name in ("attention", "architecture")
)


@pytest.mark.parametrize("name", ["results_page", "attention_worth_page"])
def test_pages_of_figures_are_up_to_date(name):
    script = [sys.executable, str(ROOT / "scripts" / f"{name}.py"), "--check"]
    assert subprocess.run(script, check=False).returncode == 0


@pytest.mark.parametrize("name", resources.bundled_models())
def test_the_readme_has_the_scores_and_size_of_every_bundled_model(name):
    record = json.loads((RESULTS / f"pretrained-{name}.json").read_text("utf-8"))
    bleu, meteor, cider = (f"{record['scores'][key]:.1f}" for key in ("bleu_4", "meteor", "cider"))
    [row] = [line for line in README.splitlines() if line.startswith(f"| `{name}`")]
    coco = f"{record['coco_scores']['cider']:.1f}"
    size = f"{record['bytes'] / 1e6:.1f} MB"
    assert f" | {bleu} | {meteor} | {cider} | {coco} | {size} | " in row


def test_the_readme_has_the_caption_of_the_model(monkeypatch, capsys):
    [line] = re.findall(r"^    captioner (caption docs/images/.*)$", README, re.MULTILINE)
    monkeypatch.chdir(ROOT)
    assert main(line.split()) == 0
    assert f"    {capsys.readouterr().out}" in README


def test_the_app_offers_the_photo_of_the_readme():
    photo = (ROOT / "docs/images/cameraman.jpg").read_bytes()
    assert (ROOT / "captioner/app/examples/cameraman.jpg").read_bytes() == photo


def test_results_come_from_a_commit():
    files = sorted(RESULTS.glob("*.json"))
    assert files
    for file in files:
        record = json.loads(file.read_text())
        assert re.fullmatch(r"[0-9a-f]{12}", record["commit"]), f"{file.name}: uncommitted changes"
        assert record["machine"]
        assert record["command"]


def test_the_commits_of_results_can_be_looked_up():
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    if not (ROOT / ".git").exists() or git("rev-parse", "--is-shallow-repository") != "false\n":
        pytest.skip("NOT A FULL CLONE: commits of results were not checked")
    history = git("log", "--format=%H").split()
    texts = [file.read_text() for file in RESULTS.glob("*.json")]
    named = {name for text in texts for name in re.findall(r'"commit": "(\w+)"', text)}
    assert named
    for name in named:
        assert any(commit.startswith(name) for commit in history), name


def anchors(page):
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_resolve():
    for page in (*PAGES, *CARDS):
        links = re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text("utf-8"))
        for target, anchor in links:
            file = page.parent / target if target else page
            assert file.exists(), f"{page.name} links to {target}"
            assert not anchor or anchor in anchors(file), f"{page.name} links to {target}#{anchor}"


def test_commands_and_files_exist():
    assert {page.name for page in PAGES} >= {"README.md", "CHANGELOG.md", "results.md"}
    for page in PAGES:
        text = page.read_text("utf-8")
        commands = re.findall(r"(?:^ {4}|`)captioner ([a-z]\w+)", text, re.MULTILINE)
        assert {*commands} <= {*training.COMMANDS, *COMMANDS, "data"}, page.name
        files = r"configs/[\w/-]+\.yaml|(?:captioner|scripts|tests)/[\w/]+\.py"
        for name in re.findall(files, text):
            recorded = page.name == "results.md" and name.startswith("scripts/")
            assert recorded or (ROOT / name).is_file(), f"{page.name} names {name}"


@pytest.mark.parametrize(
    "code", re.findall(r"(?<!-->\n)```python\n(.*?)```", ARCHITECTURE, re.DOTALL)
)
def test_the_examples_of_extensions_run(code, monkeypatch):
    monkeypatch.setattr(registry, "_TABLE", copy.deepcopy(registry._TABLE))
    exec(code, {"__name__": "example"})


def test_the_attention_page_lists_every_part():
    listed = set(re.findall(r"^\| `(\w+)` \|", ATTENTION, re.MULTILINE))
    kinds = ("score", "distribution", "attention", "decoder", "neck")
    assert listed == {name for kind in kinds for name in registry.names(kind)}
