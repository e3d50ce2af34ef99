"""Source code quoted on documentation pages equals the source.

A marker ``<!-- source: captioner/models/scores.py Additive.forward -->`` precedes a ```py block that
quotes a function, method or class. ``CAPTIONER_REFRESH_DOCS=1 pytest tests/test_docs_source.py -n0``
rewrites all such blocks.
"""

import ast
import os
import re
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(<!-- source: (\S+) (\S+) -->\n```py\n)(.*?)(```\n)", re.DOTALL)
PAGES = [page for page in sorted(ROOT.glob("docs/**/*.md")) if "<!-- source:" in page.read_text()]


def source(file: str, name: str) -> str:
    """Return the lines of a definition, such as ``Additive.forward``, without its indentation."""
    text = (ROOT / file).read_text("utf-8")
    node: ast.AST = ast.parse(text)
    for part in name.split("."):
        [node] = [child for child in node.body if getattr(child, "name", None) == part]
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return dedent("".join(text.splitlines(keepends=True)[first - 1 : node.end_lineno]))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_quoted_source_is_current(page):
    text = page.read_text("utf-8")
    assert len(BLOCK.findall(text)) == text.count("<!-- source:"), "a marker without a ```py block"
    current = BLOCK.sub(lambda m: m[1] + source(m[2], m[3]) + m[5], text)
    if os.environ.get("CAPTIONER_REFRESH_DOCS"):
        page.write_text(current, "utf-8")
    else:
        assert text == current, "refresh the page with CAPTIONER_REFRESH_DOCS=1"


def test_the_central_equations_are_quoted():
    quoted = {name for page in PAGES for _, _, name, *_ in BLOCK.findall(page.read_text())}
    assert quoted >= {"Attention.attend", "Additive.forward", "LSTMDecoder.advance"}
