"""What the documents say is true: figures come from files, commands exist, links lead somewhere."""

import copy
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import captioner
from captioner.cli import main
from captioner.models import registry

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_pages_are_found():
    assert {page.name for page in PAGES} >= {
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "results.md",
    }


def test_results_page_is_made_from_the_files():
    script = [sys.executable, str(ROOT / "scripts" / "results_page.py"), "--check"]
    assert subprocess.run(script, check=False).returncode == 0


def test_every_figure_of_the_readme_stands_in_the_results():
    """The lines about Flickr8k's development split repeat the files' figures."""
    seeing, blind = (
        json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text())
        for name in ("show-attend-tell", "image-blind")
    )
    readme = " ".join((ROOT / "README.md").read_text().split())
    b, m, c = (seeing["scores"][metric] for metric in ("bleu_4", "meteor", "cider"))
    assert f"scores BLEU-4 {b:.1f}, METEOR {m:.1f} and CIDEr {c:.1f} (generated" in readme
    assert f"after {seeing['training_seconds'] / 60:.0f} minutes on two CPU cores" in readme
    b, m, c = (blind["scores"][metric] for metric in ("bleu_4", "meteor", "cider"))
    assert f"blind to the picture scores {b:.1f}, {m:.1f} and {c:.1f}." in readme


def test_the_readme_says_how_good_the_default_is():
    file = ROOT / "docs" / "results" / "pretrained-show-attend-tell-soft.json"
    scores = json.loads(file.read_text())["scores"]
    b, m, c = (scores[metric] for metric in ("bleu_4", "meteor", "cider"))
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"the default reaches BLEU-4 {b:.1f}, METEOR {m:.1f} and CIDEr {c:.1f} (gen" in readme


def test_results_come_from_a_commit():
    files = sorted((ROOT / "docs" / "results").glob("*.json"))
    assert files
    for file in files:
        record = json.loads(file.read_text())
        assert re.fullmatch(r"[0-9a-f]{12}", record["commit"]), (
            f"{file.name} has uncommitted changes in it"
        )
        assert record["machine"]
        assert record["command"]


def test_the_commits_of_results_can_be_looked_up():
    """Each is in the history, or said to be published as part of one that is."""

    def git(*arguments: str) -> str:
        told = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(told, check=True, capture_output=True, text=True).stdout

    if not (ROOT / ".git").exists() or git("rev-parse", "--is-shallow-repository") != "false\n":
        pytest.skip(
            "not a clone with its history: the commits that results name were not looked up"
        )
    history = git("log", "--format=%H").split()
    published = tomllib.loads((ROOT / "scripts" / "published.toml").read_text())
    files = sorted((ROOT / "docs" / "results").glob("*.json"))
    named = {name for f in files for name in re.findall(r'"commit": "(\w+)"', f.read_text())}
    assert named
    for name in {published.get(name, name) for name in named}:
        assert any(commit.startswith(name) for commit in history), name
    assert not set(published) - named, "no result names these any more"


def test_the_changelog_knows_this_version():
    assert f"## {captioner.__version__}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist(page, capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    known = set(re.findall(r"^    (\w+) ", capsys.readouterr().out, re.MULTILINE))
    for command in re.findall(
        r"^ {4}captioner (\w+)|`captioner (\w+)", page.read_text(), re.MULTILINE
    ):
        assert (command[0] or command[1]) in known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_configurations_exist(page):
    for name in re.findall(r"configs/[\w/-]+\.yaml", page.read_text()):
        assert (ROOT / name).is_file(), f"{page.name} names {name}"


@pytest.mark.parametrize(
    "code",
    re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "attention.md").read_text(), re.DOTALL),
)
def test_the_examples_of_the_attention_page_run(code, monkeypatch):
    monkeypatch.setattr(registry, "_TABLE", copy.deepcopy(registry._TABLE))
    exec(code, {"__name__": "example"})


def test_the_attention_page_lists_every_part():
    listed = set(
        re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "attention.md").read_text(), re.MULTILINE)
    )
    kinds = ("score", "distribution", "decoder", "refiner")
    assert listed == {name for kind in kinds for name in registry.names(kind)}
