"""Imports follow the order of docs/architecture.md, and what must start fast imports nothing heavy."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import captioner

PACKAGE = Path(captioner.__file__).parent
ARCHITECTURE = Path(__file__).parents[1] / "docs" / "architecture.md"


def layout() -> list[str]:
    """Return modules and folders in the order of the table in docs/architecture.md."""
    rows = [line for line in ARCHITECTURE.read_text("utf-8").splitlines() if line.startswith("| `")]
    files = [name for row in rows for name in re.findall(r"`([\w/.]+)`", row.split("|")[1])]
    return [name.removesuffix(".py").strip("/").replace("/", ".") for name in files]


ORDER = layout()


def rank(module: str) -> int:
    """Return the row of a module in the table, or that of the nearest folder that has one."""
    name = module
    while name:
        if name in ORDER:
            return ORDER.index(name)
        name = name.rpartition(".")[0]
    inside = [row for row, name in enumerate(ORDER) if name.startswith(f"{module}.")]
    if inside:  # an __init__ may import every module of its folder
        return inside[-1]
    if module == "__main__":
        return len(ORDER)
    raise AssertionError(f"captioner.{module} is missing in docs/architecture.md")


def imports(file: Path) -> set[str]:
    """Return the modules that a file imports anywhere."""
    modules = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            files = {n for n in names if (PACKAGE.parent / f"{n.replace('.', '/')}.py").is_file()}
            if node.module == "captioner":
                files = names
            modules |= files or {node.module}
    return modules


FILES = sorted(file for file in PACKAGE.rglob("*.py") if file != PACKAGE / "__init__.py")
MODULES = {
    ".".join(f.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): imports(f)
    for f in FILES
}


def test_imports_follow_the_order_of_the_documentation():
    assert len(MODULES) >= 25
    wrong = [
        f"{name} imports {module}"
        for name, imported in MODULES.items()
        for module in imported - {"captioner.__version__"}
        if module.startswith("captioner.") and rank(module[len("captioner.") :]) > rank(name)
    ]
    assert not wrong


def test_only_training_needs_lightning_and_only_the_app_needs_gradio():
    for name, imported in MODULES.items():
        if name.split(".")[0] in ("models", "search", "store", "predict", "overlay"):
            assert not any("lightning" in module for module in imported), name
    needing = {
        n for n, imported in MODULES.items() if any(m.startswith("gradio") for m in imported)
    }
    assert needing == {"app.api", "app.page", "app.panel", "app.upload"}


def test_transformers_is_imported_only_for_its_models():
    needing = {
        n for n, imported in MODULES.items() if any(m.startswith("transformers") for m in imported)
    }
    assert needing == {"hf.hub", "hf.model"}
    body = ast.parse(
        (PACKAGE / "predict" / "load.py").read_text()
    ).body  # without what functions import
    imported = {node.module for node in body if isinstance(node, ast.ImportFrom)}
    assert "captioner.predict.predictor" in imported
    assert not imported & {"captioner.hf.hub", "captioner.hf.model"}


@pytest.mark.parametrize("arguments", [["-c", "import captioner"], ["-m", "captioner", "--help"]])
def test_starting_imports_nothing_heavy(arguments):
    code = ["-X", "importtime", *arguments]
    done = subprocess.run([sys.executable, *code], capture_output=True, text=True, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "captioner" in loaded
    assert not loaded & {
        "torch",
        "numpy",
        "pytorch_lightning",
        "gradio",
        "timm",
        "nltk",
        "PIL",
        "transformers",
    }


def test_public_names_exist():
    for name in captioner.__all__:
        assert getattr(captioner, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        captioner.nothing  # noqa: B018
