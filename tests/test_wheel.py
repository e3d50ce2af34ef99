"""pip installs the package, its configurations and its models, and nothing else."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_contents_and_size(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    subprocess.run([*build, str(tmp_path), str(ROOT)], check=True)
    [wheel] = tmp_path.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    listed = subprocess.run(
        ["git", "ls-files", "captioner", "configs"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert names == {name.replace("configs/", "captioner/configs/", 1) for name in listed}
    suffixes = {Path(name).suffix for name in names}
    kinds = {".py", ".yaml", ".json", ".safetensors", ".md", ".toml", ".html", ".css", ".js"}
    assert suffixes == kinds | {".jpg", ".typed", ""}
    megabytes = wheel.stat().st_size / 1e6
    print(f"wheel: {len(names)} files, {megabytes:.1f} MB")
    assert megabytes <= 96
