"""The files that ship with the package."""

import hashlib

from captioner.resources import models

PRETRAINED = next(iter(models().values())).parent


def test_bundled_models_have_their_recorded_checksums():
    lines = (PRETRAINED / "SHA256SUMS").read_text("utf-8").splitlines()
    recorded = {name: digest for digest, name in (line.split("  ") for line in lines)}
    files = [f for f in PRETRAINED.rglob("*") if f.suffix in (".safetensors", ".json")]
    found = {
        f.relative_to(PRETRAINED).as_posix(): hashlib.sha256(f.read_bytes()).hexdigest()
        for f in files
    }
    assert found == recorded
