"""The commit that is recorded with a result."""

import re
import subprocess

from captioner import provenance


def test_the_commit(tmp_path, monkeypatch):
    """Changes in docs/results do not mark the commit as changed; changes of code do."""
    code, results = tmp_path / "captioner" / "provenance.py", tmp_path / "docs" / "results"
    code.parent.mkdir()
    code.write_text("code")
    who = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
    for command in (("init", "-q"), ("add", "."), (*who, "commit", "-q", "-m", "first")):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    monkeypatch.setattr(provenance, "__file__", str(code))
    clean = provenance.provenance()["commit"]
    assert re.fullmatch("[0-9a-f]{12}", clean)
    results.mkdir(parents=True)
    (results / "scores.json").write_text("{}")
    assert provenance.provenance()["commit"] == clean
    code.write_text("other code")
    assert provenance.provenance()["commit"] == clean + "+"
