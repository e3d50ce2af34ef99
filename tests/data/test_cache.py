"""The annotation cache: the encoder's output, computed once, by any number of processes."""

import os
import pickle
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from captioner.data.cache import AnnotationCache, PixelEncoder
from captioner.data.crops import FixedCrop
from captioner.data.pixels import to_tensor
from captioner.errors import DataError
from captioner.models.annotations import Annotations
from captioner.models.encoder import Preprocessing
from captioner.photos import images
from layouts import picture

PICTURES = 7
GRID = (2, 3)
PREPROCESSING = Preprocessing(24, 36, "bilinear", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


class FakeEncoder:
    """Annotation vectors are the means of the cells' pixels; ``act`` runs before call ``at``."""

    preprocessing = PREPROCESSING

    def __init__(self, name="fake", at=None, act=None):
        self.name, self.calls = name, 0
        self.at, self.act = at, act

    def fingerprint(self):
        return self.name

    def __call__(self, pixels):
        if self.calls == self.at:
            self.act()
        self.calls += 1
        cells = torch.nn.functional.adaptive_avg_pool2d(pixels.float(), GRID)
        return Annotations(cells.flatten(2).transpose(1, 2), GRID)


def expected(path) -> np.ndarray:
    """The (L, D) means of the cells, by plain loops."""
    pixels = to_tensor(images.load(path), (24, 36), "bilinear").double().numpy()
    cells = [
        pixels[:, 12 * r : 12 * r + 12, 12 * c : 12 * c + 12] for r in (0, 1) for c in range(3)
    ]
    return np.stack([cell.mean(axis=(1, 2)) for cell in cells]).astype(np.float16)


@pytest.fixture
def paths(tmp_path) -> list[str]:
    return [str(picture(tmp_path / "photos" / f"{i}.png", seed=i)) for i in range(PICTURES)]


def open_cache(tmp_path, paths, encoder=None, **options) -> AnnotationCache:
    options = {"batch_size": 3, **options}
    return AnnotationCache.open(tmp_path / "cache", paths, encoder or FakeEncoder(), **options)


def must_not_run():
    raise AssertionError("the encoder was called again")


def caches(tmp_path) -> list[Path]:
    return sorted((tmp_path / "cache").iterdir())


def finished(tmp_path) -> list[str]:
    """The finished shards."""
    return sorted(file.name for file in (tmp_path / "cache").rglob("*.safetensors"))


def is_complete(cache: AnnotationCache, paths: list[str]) -> bool:
    return cache.rows.keys() == set(paths) and all(
        np.allclose(cache[path].vectors[0], expected(path), rtol=1e-3) for path in paths
    )


# ── Contents ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("batch_size", [3, 100])
def test_vectors_are_the_encoders_as_float16(batch_size, tmp_path, paths):
    """They are computed once and stay on disk."""
    encoder = FakeEncoder()
    cache = open_cache(tmp_path, paths, encoder, batch_size=batch_size)
    assert encoder.calls == -(-PICTURES // batch_size)
    assert (cache.grid, cache.failed) == (GRID, {})
    assert is_complete(cache, paths)
    for path in paths:
        pixels = to_tensor(images.load(path), (24, 36), "bilinear")
        direct = FakeEncoder()(pixels.unsqueeze(0)).vectors[0]
        assert cache[path].vectors.dtype == torch.float16
        assert torch.equal(cache[path].vectors[0], direct.half())
    assert len(pickle.dumps(cache)) < 3000
    again = open_cache(tmp_path, paths, FakeEncoder(at=0, act=must_not_run), batch_size=2)
    assert is_complete(pickle.loads(pickle.dumps(again)), paths)
    assert (cache.rows, cache.grid, cache.failed) == (again.rows, again.grid, again.failed)
    assert len(caches(tmp_path)) == 1


def test_pixels_for_a_trainable_encoder(tmp_path, paths):
    broken(paths[4])
    readable = [path for path in paths if path != paths[4]]
    cache = open_cache(tmp_path, paths, PixelEncoder(PREPROCESSING), shard_size=3)
    assert cache.grid is None
    for path in readable:
        pixels = to_tensor(images.load(path), (24, 36), "bilinear")
        assert cache[path].dtype == torch.uint8
        assert torch.equal(cache[path], pixels)
    assert list(cache.failed) == [paths[4]]
    open_cache(tmp_path, readable)
    assert len(caches(tmp_path)) == 2
    larger = PixelEncoder(replace(PREPROCESSING, height=48))
    assert open_cache(tmp_path, paths, larger)[paths[0]].shape == (3, 48, 36)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("other weights", list),
        ("fake", lambda paths: paths[:-1]),
        ("fake", lambda paths: os.utime(paths[2], ns=(1, 1)) or paths),
    ],
)
def test_a_change_makes_another_cache(name, change, tmp_path, paths):
    open_cache(tmp_path, paths)
    now, encoder = change(paths), FakeEncoder(name)
    assert is_complete(open_cache(tmp_path, now, encoder), now)
    assert encoder.calls == -(-len(now) // 3)
    assert len(caches(tmp_path)) == 2


# ── Unreadable images ──────────────────────────────────────────────────────────────────


def broken(path):
    Path(path).write_bytes(Path(path).read_bytes()[:60])


@pytest.mark.parametrize(
    ("indices", "damage", "size"),
    [
        ([0], broken, 256),
        ([4], os.remove, 256),
        ([2, 3], broken, 2),  # a whole shard
    ],
)
def test_unreadable_images_are_left_out(indices, damage, size, tmp_path, paths):
    bad = [paths[i] for i in indices]
    for path in bad:
        damage(path)
    cache = open_cache(tmp_path, paths, shard_size=size)
    assert is_complete(cache, [path for path in paths if path not in bad])
    assert list(cache.failed) == bad
    with pytest.raises(KeyError):
        cache[bad[0]]
    # The errors are kept.
    again = open_cache(tmp_path, paths, FakeEncoder(at=0, act=must_not_run), shard_size=size)
    assert again.failed == cache.failed
    assert all(path in message for path, message in cache.failed.items())
    with pytest.raises(DataError, match=r"^none of 1 photo could be read; the first: "):
        open_cache(tmp_path, bad[:1])


def test_every_image_of_a_cache_of_crops_has_its_own_crop(tmp_path, paths):
    """This also holds for images after the first batch and after an unreadable image."""
    broken(paths[1])
    crop = FixedCrop(0.4, 1, (24, 36))
    cache = open_cache(tmp_path, paths, shard_size=4, crop=crop)
    for path in paths[:1] + paths[2:]:
        pixels = crop.of(path).of_pixels(to_tensor(images.load(path), (24, 36), "bilinear"))
        assert torch.equal(cache[path].vectors, FakeEncoder()(pixels[None]).vectors.half())
    assert len({crop.of(path) for path in paths}) > PICTURES / 2


@pytest.mark.parametrize("size", [2, PICTURES])
def test_an_image_that_is_readable_again_is_computed(size, tmp_path, paths):
    """A disk that was offline changes neither size nor time of a file, so not the key."""
    file = Path(paths[2])
    content, stat = file.read_bytes(), file.stat()
    for readable in (False, True):
        file.write_bytes(content if readable else bytes(len(content)))
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        encoder = FakeEncoder()
        cache = open_cache(tmp_path, paths, encoder, shard_size=size, batch_size=10)
        assert list(cache.failed) == ([] if readable else [paths[2]])
    assert encoder.calls == 1
    assert is_complete(cache, paths)
    assert len(caches(tmp_path)) == 1


# ── Damage ────────────────────────────────────────────────────────────────────────────────────────


def flip_a_bit(file):
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "verify"),
    [
        (flip_a_bit, True),  # opening alone does not read the values
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), False),
        (Path.unlink, False),
    ],
)
def test_damaged_shards_are_computed_again(damage, verify, tmp_path, paths, caplog):
    open_cache(tmp_path, paths, shard_size=3)
    damage(caches(tmp_path)[0] / "00001.safetensors")
    encoder = FakeEncoder()
    cache = open_cache(tmp_path, paths, encoder, shard_size=3, verify=verify)
    assert is_complete(cache, paths)
    assert encoder.calls == 1
    assert ("damaged shard" in caplog.text) == verify
    again = FakeEncoder(at=0, act=must_not_run)
    assert is_complete(open_cache(tmp_path, paths, again, shard_size=3, verify=True), paths)


BYTES = PICTURES * 6 * 3 * 2


def test_a_full_disk_is_refused_beforehand(tmp_path, paths, monkeypatch):
    disk = SimpleNamespace(free=BYTES - 1)
    monkeypatch.setattr("captioner.data.cache.shutil.disk_usage", lambda _: disk)
    message = rf"needs 0\.0 GB, '{tmp_path}/cache' has 0\.0 GB free; .* --data\.cache_dir$"
    with pytest.raises(DataError, match=message):
        open_cache(tmp_path, paths, shard_size=3)
    assert finished(tmp_path) == []
    disk.free = BYTES
    open_cache(tmp_path, paths)


def test_an_unwritable_folder(tmp_path, paths):
    (tmp_path / "cache").write_text("a file where the folder should be")
    message = rf"^cannot write .* '{tmp_path}/.* --data\.cache_dir or the variable CAPTIONER_CACHE$"
    with pytest.raises(DataError, match=message):
        open_cache(tmp_path, paths, FakeEncoder(at=0, act=must_not_run))
    assert (tmp_path / "cache").is_file()
