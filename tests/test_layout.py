"""Imports point only upward, and what must start fast imports nothing heavy."""

import ast
import builtins
import subprocess
import sys
import time
from pathlib import Path

import pytest

import captioner

PACKAGE = Path(captioner.__file__).parent
SCRIPTS = Path(__file__).parents[1] / "scripts"

# The layout of the package, from what knows nothing to what knows everything.
# The name of a folder stands for its __init__, which gathers what is in it.
ORDER = [
    "errors",
    "options",
    "processes",
    "shipped",
    "provenance",
    "memory",
    "files",
    "paths",
    "images",
    "text",
    "data.columns",
    "data.records",
    "data.readers",
    "data.sentences",
    "data.statistics",
    "data.workers",
    "data.inspection",
    "data.things",
    "data.grammar",
    "data.shapes",
    "data.shapes_folder",
    "data.objects",
    "data.masks",
    "data.supervision",
    "data.pixels",
    "data.shards",
    "data.features",
    "data.order",
    "data.loading",
    "data.dataset",
    "data.module",
    "data",
    "models.registry",
    "models.annotations",
    "models.trunks",
    "models.convolution",
    "models.folding",
    "models.encoder",
    "models.linear",
    "models.positions",
    "models.attention",
    "models.refiners",
    "models.decoder",
    "models.packing",
    "models.recurrence",
    "models.recurrent",
    "models.lstm",
    "models.luong",
    "models.transformer",
    "models.monte_carlo",
    "models.erasure",
    "models.captioner",
    "models",
    "trace",
    "decoding",
    "evaluation.bootstrap",
    "evaluation.tallies",
    "evaluation.java",
    "evaluation.captions",
    "evaluation.consensus",
    "evaluation.fluency",
    "evaluation.function_words",
    "evaluation.deletion",
    "evaluation.curves",
    "evaluation.localisation",
    "evaluation.means",
    "evaluation.gaze",
    "evaluation.baselines",
    "evaluation.mentions",
    "evaluation.naming",
    "evaluation.grounding",
    "evaluation",
    "training.said",
    "training.objectives",
    "training.lower_bound",
    "training.self_critical",
    "untrusted",
    "checkpoint",
    "predictor",
    "evaluation.faithfulness",
    "overlay.style",
    "overlay.colours",
    "overlay.lettering",
    "overlay.heat",
    "overlay.sheet",
    "overlay.matrix",
    "overlay.files",
    "overlay.web",
    "overlay",
    "comparison",
    "comparison.results",
    "comparison.table",
    "comparison.forms",
    "comparison.plots",
    "compare",
    "data_check",
    "explain",
    "ground_tables",
    "ground_pictures",
    "ground",
    "library.records",
    "library.shards",
    "library.sources",
    "library.batch",
    "library.workers",
    "library.cluster",
    "library",
    "writers",
    "caption",
    "training.parts",
    "training.warm_start",
    "training.schedule",
    "training.checkpoints",
    "training.card",
    "training.task",
    "training.averaging",
    "training.pictures",
    "training.result",
    "training.run",
    "training",
    "ui_models",
    "ui_photo",
    "ui_panel",
    "ui_api",
    "ui",
    "cli",
    "__main__",
]


def rank(module: str) -> int:
    """The place of a module of this package in the order; folders in folders count as one."""
    name = ".".join(module.split(".")[:2])
    if name in ORDER:
        return ORDER.index(name)
    raise AssertionError(f"captioner.{module} has no place in the layout")


def modules() -> list[tuple[str, Path]]:
    files = [f for f in PACKAGE.rglob("*.py") if f != PACKAGE / "__init__.py"]
    return [
        (".".join(f.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"), f)
        for f in sorted(files)
    ]


def imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            files = {
                name
                for name in inside
                if (PACKAGE.parent / (name.replace(".", "/") + ".py")).is_file()
            }
            if node.module == "captioner":
                files |= inside
            # A module taken from its folder is a module, not what the folder gathers.
            found |= files or {node.module}
    return found


@pytest.mark.parametrize(("name", "file"), modules(), ids=lambda value: str(value)[-40:])
def test_imports_point_upward(name, file):
    own = {module for module in imports(file) if module.startswith("captioner.")}
    for module in own - {"captioner.__version__"}:
        assert rank(module.removeprefix("captioner.")) <= rank(name), f"{name} imports {module}"


def defined(tree: ast.AST) -> set[str]:
    """Every name that is given a meaning anywhere in a module."""
    names = set(dir(builtins)) | {"__file__", "__name__", "__doc__", "__path__"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(a.asname or a.name).split(".")[0] for a in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            names.add(node.name)
    return names


@pytest.mark.parametrize(
    "file",
    sorted([*PACKAGE.rglob("*.py"), *SCRIPTS.rglob("*.py"), *Path(__file__).parent.glob("*.py")]),
    ids=lambda file: file.stem,
)
def test_names_have_a_meaning(file):
    """What linters look for, but for jaxtyping's axes, for whose sake they are told not to."""
    tree = ast.parse(file.read_text("utf-8"))
    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    assert used <= defined(tree)


def test_an_undefined_name_would_be_found():
    tree = ast.parse("from os import path\ndef f(a):\n    return [a + b + path for c in a]")
    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    assert used - defined(tree) == {"b"}


def test_every_module_is_seen():
    assert len(modules()) >= 25


@pytest.mark.parametrize("part", ["models", "decoding", "checkpoint", "predictor", "overlay"])
def test_using_a_model_needs_no_lightning(part):
    for name, file in modules():
        if name.split(".")[0] == part:
            assert not any("lightning" in module for module in imports(file)), name


def test_only_the_app_knows_gradio():
    knowing = {n for n, file in modules() if any(m.startswith("gradio") for m in imports(file))}
    assert knowing == {"ui", "ui_api", "ui_panel", "ui_photo"}


@pytest.mark.parametrize("arguments", [["-c", "import captioner"], ["-m", "captioner", "--help"]])
def test_starting_imports_nothing_heavy(arguments):
    code = ["-X", "importtime", *arguments]
    done = subprocess.run([sys.executable, *code], capture_output=True, text=True, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "captioner" in loaded
    assert not loaded & {"torch", "numpy", "pytorch_lightning", "gradio", "timm", "nltk", "PIL"}


def test_help_is_quick():
    times = []
    for _ in range(3):
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "captioner", "--help"], capture_output=True, check=True
        )
        times.append(time.perf_counter() - began)
    assert min(times) <= 0.5


def test_public_names_are_there():
    for name in captioner.__all__:
        assert getattr(captioner, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        captioner.nothing  # noqa: B018
