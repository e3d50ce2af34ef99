"""pip installs the package, its configurations and its models, and nothing else."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODELS = (
    "show-attend-tell-soft",
    "show-attend-tell-critical",
    "show-attend-tell-hard",
    "luong-dot",
    "transformer",
)
PARTS = ("README.md", "config.json", "model.safetensors", "vocab.json")
OTHERS = {  # besides Python files and configurations
    *(f"captioner/pretrained/{model}/{part}" for model in MODELS for part in PARTS),
    "captioner/pretrained/encoders/efficientnet_lite2-flickr8k.safetensors",
    "captioner/pretrained/encoders/dinov2_small-saliency.safetensors",
    "captioner/pretrained/encoders/NOTICE.md",
    "captioner/pretrained/SHA256SUMS",
    "captioner/cli/training_options.json",
    "captioner/data/coco_words.toml",
    "captioner/py.typed",
    *(
        f"captioner/overlay/{part}.{kind}"
        for part in ("page", "map")
        for kind in ("html", "css", "js")
    ),
    "captioner/app/examples/SOURCES.toml",
    *(
        f"captioner/app/examples/{photo}.jpg"
        for photo in ("cameraman", "grace_hopper", "china", "astronaut", "chelsea", "coffee")
    ),
    *(f"captioner/app/page.{kind}" for kind in ("css", "js")),
}


@pytest.mark.slow
def test_contents_and_size(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    subprocess.run([*build, str(tmp_path), str(ROOT)], check=True)
    [wheel] = tmp_path.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    code = {path.relative_to(ROOT).as_posix() for path in (ROOT / "captioner").rglob("*.py")}
    settings = {
        f"captioner/{path.relative_to(ROOT).as_posix()}"
        for path in (ROOT / "configs").rglob("*.yaml")
    }
    assert names == code | settings | OTHERS
    megabytes = wheel.stat().st_size / 1e6
    print(f"wheel: {len(names)} files, {megabytes:.1f} MB")
    assert megabytes <= 96
