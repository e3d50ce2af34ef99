"""The annotation cache: the encoder's own numbers, computed once, and never half a cache."""

import itertools
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from captioner import images
from captioner.data.features import AnnotationCache, Resized
from captioner.data.shards import Shards
from captioner.errors import DataError
from layouts import picture

HERE = Path(__file__).parent
PICTURES = 7
GRID = (2, 3)


class FakeEncoder:
    """Cells are means of pixels: easily known, and another for every picture and place."""

    preprocessing = SimpleNamespace(height=24, width=36, interpolation="bilinear")

    def __init__(self, name="fake", at=None, act=None):
        self.name, self.calls = name, 0
        self.at, self.act = at, act  # something to do before this call

    def fingerprint(self):
        return self.name

    def __call__(self, pixels):
        if self.calls == self.at:
            self.act()
        self.calls += 1
        cells = torch.nn.functional.adaptive_avg_pool2d(pixels.float(), GRID)
        return SimpleNamespace(vectors=cells.flatten(2).transpose(1, 2), grid=GRID)


def expected(path) -> np.ndarray:
    """(L, D) from the definition: the mean over each cell's pixels."""
    pixels = images.to_tensor(images.load(path), (24, 36), "bilinear").double().numpy()
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
    raise AssertionError("the encoder was asked again")


def kept(tmp_path) -> list[Path]:
    return sorted((tmp_path / "cache").iterdir())


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def finished(tmp_path) -> list[str]:
    """The shards that are there."""
    return sorted(file.name for file in (tmp_path / "cache").rglob("*.json"))


def is_whole(cache: AnnotationCache, paths: list[str]) -> bool:
    return cache.rows.keys() == set(paths) and all(
        np.allclose(cache[path], expected(path), rtol=1e-3) for path in paths
    )


# ── What it holds ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("batch_size", [1, 3, PICTURES, 100])
def test_vectors_are_the_encoders_as_float16(batch_size, tmp_path, paths):
    encoder = FakeEncoder()
    cache = open_cache(tmp_path, paths, encoder, batch_size=batch_size)
    assert encoder.calls == -(-PICTURES // batch_size)
    assert (cache.grid, cache.failed) == (GRID, {})
    for path in paths:
        pixels = images.to_tensor(images.load(path), (24, 36), "bilinear")
        direct = FakeEncoder()(pixels.unsqueeze(0)).vectors[0]
        assert cache[path].dtype == np.float16
        assert np.array_equal(cache[path], direct.half().numpy())
        np.testing.assert_allclose(cache[path], expected(path), rtol=1e-3)
    assert len({cache[path].tobytes() for path in paths}) == PICTURES


def test_what_is_read_does_not_stay_in_memory(tmp_path):
    """Mapped, a data set as large as the memory would look like a process that needs all of it."""
    rows, columns = 64, 1 << 20
    np.save(tmp_path / "00000.npy", np.ones((rows, columns), np.float16))  # 128 MB
    shards = Shards(tmp_path, rows)
    shards[0]
    statm = Path("/proc/self/statm")
    if not statm.is_file():
        pytest.skip("NO /proc: RESIDENT MEMORY IS NOT MEASURED")
    before = int(statm.read_text().split()[1])
    assert all(shards[row][-1] == 1 for row in range(rows))
    grown = (int(statm.read_text().split()[1]) - before) * resource.getpagesize()
    assert grown < 16 << 20


def test_vectors_stay_on_disk(tmp_path, paths):
    cache = open_cache(tmp_path, paths, shard=3)
    assert len(pickle.dumps(cache)) < 3000
    again = pickle.loads(pickle.dumps(cache))
    assert all(np.array_equal(again[path], cache[path]) for path in paths)


@pytest.mark.parametrize("shard", [1, 2, 3, PICTURES, 100])
def test_shards_hold_what_one_file_would(shard, tmp_path, paths):
    cache = open_cache(tmp_path, paths, shard=shard)
    assert is_whole(cache, paths)
    (folder,) = kept(tmp_path)
    number = -(-PICTURES // shard)
    assert names(folder) == [f"{n:05d}.{end}" for n in range(number) for end in ("json", "npy")]


def test_pixels_for_an_encoder_that_learns(tmp_path, paths):
    """To the bit what reading the file gives, whatever the weights are."""
    broken(paths[4])
    good = [path for path in paths if path != paths[4]]
    size = FakeEncoder.preprocessing
    cache = open_cache(tmp_path, paths, Resized(size), shard=3)
    assert cache.grid == (0, 0)
    for path in good:
        pixels = images.to_tensor(images.load(path), (size.height, size.width), size.interpolation)
        assert cache[path].dtype == np.uint8
        assert np.array_equal(cache[path], pixels.numpy())
    assert list(cache.failed) == [paths[4]]
    open_cache(tmp_path, good)
    assert len(kept(tmp_path)) == 2
    larger = SimpleNamespace(height=48, width=36, interpolation="bilinear")
    assert open_cache(tmp_path, paths, Resized(larger))[paths[0]].shape == (3, 48, 36)


def test_the_second_time_nothing_is_computed(tmp_path, paths):
    first = open_cache(tmp_path, paths)
    again = open_cache(tmp_path, paths, FakeEncoder(at=0, act=must_not_run), batch_size=2)
    assert all(np.array_equal(first[path], again[path]) for path in paths)
    assert (first.rows, first.grid, first.failed) == (again.rows, again.grid, again.failed)
    assert len(kept(tmp_path)) == 1


def touched(paths):
    os.utime(paths[2], ns=(1, 1))
    return paths


def overwritten(paths):
    """Another picture whose file tells the same time."""
    then = os.stat(paths[2]).st_mtime_ns  # noqa: PTH116
    picture(Path(paths[2]), seed=99, size=(60, 32))
    os.utime(paths[2], ns=(then, then))
    return paths


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("other weights", None),
        ("fake", lambda paths: paths[:-1]),
        ("fake", lambda paths: paths[::-1]),
        ("fake", touched),
        ("fake", overwritten),
    ],
)
def test_what_changes_is_computed_anew(name, change, tmp_path, paths):
    open_cache(tmp_path, paths)
    now = change(paths) if change else paths
    encoder = FakeEncoder(name)
    assert is_whole(open_cache(tmp_path, now, encoder), now)
    assert encoder.calls == -(-len(now) // 3)
    assert len(kept(tmp_path)) == 2


def test_progress_sees_every_batch(tmp_path, paths):
    seen = []

    def progress(batches, total):
        for batch in batches:
            seen.append((total, batch.indices))
            yield batch

    open_cache(tmp_path, paths, progress=progress)
    assert seen == [(3, [0, 1, 2]), (3, [3, 4, 5]), (3, [6])]


# ── Pictures that cannot be read ──────────────────────────────────────────────────────────────────


def broken(path):
    Path(path).write_bytes(Path(path).read_bytes()[:60])


@pytest.mark.parametrize("breaks", [broken, os.remove, lambda path: Path(path).write_bytes(b"")])
@pytest.mark.parametrize("places", [[0], [4], [6], [3, 4, 5]])
def test_an_unreadable_picture_costs_only_itself(places, breaks, tmp_path, paths, caplog):
    bad, good = [paths[i] for i in places], [p for i, p in enumerate(paths) if i not in places]
    for path in bad:
        breaks(path)
    cache = open_cache(tmp_path, paths)
    assert is_whole(cache, good)
    assert list(cache.failed) == bad
    with pytest.raises(KeyError):
        cache[bad[0]]
    # Once each, and said again whenever the cache is opened.
    for again in (False, True):
        if again:
            caplog.clear()
            open_cache(tmp_path, paths, FakeEncoder(at=0, act=must_not_run))
        assert [record.levelname for record in caplog.records] == ["WARNING"] * len(bad)
        for record, path in zip(caplog.records, bad, strict=True):
            assert f"left out: {path} (" in record.getMessage()


def test_a_picture_that_can_be_read_again_is_not_left_out(tmp_path, paths):
    """A disk that was away changes neither size nor time of a file, so not the key."""
    file = Path(paths[2])
    content, stat = file.read_bytes(), file.stat()
    for there in (bytes(len(content)), content):
        file.write_bytes(there)
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        cache = open_cache(tmp_path, paths)
        assert list(cache.failed) == ([] if there == content else [paths[2]])
    assert is_whole(cache, paths)
    assert len(kept(tmp_path)) == 1


def test_one_cache_however_the_folder_is_written(tmp_path, paths, monkeypatch):
    open_cache(tmp_path, paths)
    monkeypatch.chdir(tmp_path)
    relative = [os.path.relpath(path) for path in paths]
    assert is_whole(open_cache(tmp_path, relative, FakeEncoder(at=0, act=must_not_run)), relative)


def test_others_may_read_it(tmp_path, paths):
    open_cache(tmp_path, paths)
    (folder,) = kept(tmp_path)
    assert folder.stat().st_mode & 0o777 == 0o755


def test_nothing_can_be_read(tmp_path, paths):
    for path in paths:
        broken(path)
    with pytest.raises(DataError, match=r"^none of 7 pictures could be read; the first: .*0\.png"):
        open_cache(tmp_path, paths)


@pytest.mark.parametrize("shard", [2, 7])
def test_what_can_be_read_again_costs_its_shard_alone(shard, tmp_path, paths):
    content, stat = Path(paths[3]).read_bytes(), Path(paths[3]).stat()
    for there in (bytes(len(content)), content):
        Path(paths[3]).write_bytes(there)
        os.utime(paths[3], ns=(stat.st_atime_ns, stat.st_mtime_ns))
        encoder = FakeEncoder()
        cache = open_cache(tmp_path, paths, encoder, shard=shard, batch_size=10)
    assert encoder.calls == 1
    assert is_whole(cache, paths)


def test_a_shard_without_a_readable_picture(tmp_path, paths):
    for path in paths[2:4]:
        broken(path)
    cache = open_cache(tmp_path, paths, shard=2)
    assert is_whole(cache, [*paths[:2], *paths[4:]])


# ── Checksums ─────────────────────────────────────────────────────────────────────────────────────


def test_what_lost_its_checksum_is_computed_again(tmp_path, paths, caplog):
    open_cache(tmp_path, paths, shard=3)
    (folder,) = kept(tmp_path)
    file = folder / "00001.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    # Whoever only opens it does not read it all.
    assert open_cache(tmp_path, paths, shard=3)[paths[5]].tobytes()[-1] == content[-1]
    encoder = FakeEncoder()
    assert is_whole(open_cache(tmp_path, paths, encoder, shard=3, verify=True), paths)
    assert encoder.calls == 1
    assert "shard 00001" in caplog.text
    again = FakeEncoder(at=0, act=must_not_run)
    assert is_whole(open_cache(tmp_path, paths, again, shard=3, verify=True), paths)


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "00001.npy").write_bytes(b"cut"),
        lambda folder: (folder / "00001.npy").unlink(),
        lambda folder: (folder / "00001.json").write_text("{"),
        lambda folder: (folder / "00001.json").unlink(),
    ],
)
def test_what_is_cut_or_gone_is_computed_again(damage, tmp_path, paths):
    open_cache(tmp_path, paths, shard=3)
    damage(kept(tmp_path)[0])
    encoder = FakeEncoder()
    assert is_whole(open_cache(tmp_path, paths, encoder, shard=3), paths)
    assert encoder.calls == 1


# ── Crashes ───────────────────────────────────────────────────────────────────────────────────────


class Crash(Exception):
    pass


def crash():
    raise Crash


@pytest.mark.parametrize("at", [0, 1, 2])
def test_an_exception_keeps_what_is_finished(at, tmp_path, paths):
    with pytest.raises(Crash):
        open_cache(tmp_path, paths, FakeEncoder(at=at, act=crash), shard=3)
    assert finished(tmp_path) == [f"{n:05d}.json" for n in range(at)]
    encoder = FakeEncoder()
    assert is_whole(open_cache(tmp_path, paths, encoder, shard=3), paths)
    assert encoder.calls == 3 - at


def test_a_crash_while_finishing_leaves_nothing(tmp_path, paths, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("captioner.data.shards.os.fsync", full)
        with pytest.raises(DataError, match=r"cannot write the annotation cache .*No space left"):
            open_cache(tmp_path, paths)
    assert finished(tmp_path) == []
    assert not list((tmp_path / "cache").rglob("*.part"))
    assert is_whole(open_cache(tmp_path, paths), paths)


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="kill -9 is for POSIX")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_kill_9_at_every_step_of_filling(tmp_path, paths, monkeypatch):
    """After each file that is opened, settled or moved: finished shards stay, the rest is done again."""
    whole = AnnotationCache.open(tmp_path / "whole", paths, FakeEncoder(), batch_size=3, shard=3)
    killed = 0
    for step in itertools.count():
        (tmp_path / f"{step}").mkdir()
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)  # the parent's others were not forked with it
            left = itertools.count(step, -1)

            def counted(real, left=left):
                def call(*given, **named):
                    if next(left) == 0:
                        kill()
                    return real(*given, **named)

                return call

            monkeypatch.setattr("captioner.data.shards.os.fsync", counted(os.fsync))
            for name in ("replace", "open", "unlink"):
                monkeypatch.setattr(Path, name, counted(getattr(Path, name)))
            open_cache(tmp_path / f"{step}", paths, shard=3)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) == 0:
            break
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
        killed += 1
        done, encoder = len(finished(tmp_path / f"{step}")), FakeEncoder()
        cache = open_cache(tmp_path / f"{step}", paths, encoder, shard=3)
        assert encoder.calls == 3 - done
        assert all(np.array_equal(cache[path], whole[path]) for path in paths)
        assert names(cache.shards.folder) == names(whole.shards.folder)
    assert killed > 3 * 6


def wait_for(file: Path):
    """Goes on when the file is there."""
    deadline = time.monotonic() + 120
    while not file.exists():
        assert time.monotonic() < deadline, f"{file} never came"
        time.sleep(0.01)


def in_another_process(act: str, tmp_path, paths) -> subprocess.Popen:
    code = f"""
import sys
from pathlib import Path
import test_features as t
folder, *paths = sys.argv[1:]
folder = Path(folder)
encoder = t.FakeEncoder(at=1, act=lambda: t.{act})
t.open_cache(folder, paths, encoder, shard=3)
(folder / f"calls-{{encoder.calls}}").touch()
"""
    return subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), *paths],
        env={**os.environ, "PYTHONPATH": str(HERE)},
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.skipif(os.name != "posix", reason="kill -9 is for POSIX")
def test_kill_9_leaves_nothing_that_is_taken_for_a_cache(tmp_path, paths):
    process = in_another_process("kill()", tmp_path, paths)
    _, errors = process.communicate()
    assert process.returncode == -signal.SIGKILL, errors
    assert finished(tmp_path) == ["00000.json"]
    assert "00001.lock" in names(kept(tmp_path)[0])  # what it had begun is still there
    encoder = FakeEncoder()
    assert is_whole(open_cache(tmp_path, paths, encoder, shard=3), paths)
    assert encoder.calls == 2
    again = FakeEncoder(at=0, act=must_not_run)
    assert is_whole(open_cache(tmp_path, paths, again, shard=3), paths)
    assert "00001.lock" not in names(kept(tmp_path)[0])


def test_two_processes_share_the_work(tmp_path, paths):
    """While one is held up in its second shard, the other does what is left, and no shard twice."""
    other = in_another_process("wait_for(folder / 'go')", tmp_path, paths)
    deadline = time.monotonic() + 120
    while finished(tmp_path) != ["00000.json"]:
        assert time.monotonic() < deadline, "the other process never began"
        time.sleep(0.02)
    encoder = FakeEncoder(at=0, act=(tmp_path / "go").touch)
    # The third shard, while the second is the other's; then it waits until that is there.
    assert is_whole(open_cache(tmp_path, paths, encoder, shard=3), paths)
    _, errors = other.communicate()
    assert other.returncode == 0, errors
    assert (tmp_path / "calls-2").exists()
    assert encoder.calls == 1


def test_what_another_left_undone_is_taken_over(tmp_path, paths):
    """It held the lock of the second shard when it was killed."""
    other = in_another_process("wait_for(folder / 'never')", tmp_path, paths)
    deadline = time.monotonic() + 120
    while finished(tmp_path) != ["00000.json"]:
        assert time.monotonic() < deadline, "the other process never began"
        time.sleep(0.02)
    encoder = FakeEncoder(at=0, act=other.kill)
    assert is_whole(open_cache(tmp_path, paths, encoder, shard=3), paths)
    assert encoder.calls == 2
    other.communicate()


# ── Disks ─────────────────────────────────────────────────────────────────────────────────────────

Usage = namedtuple("Usage", "total used free")
BYTES = PICTURES * 6 * 3 * 2


@pytest.mark.parametrize(("free", "fits"), [(0, False), (BYTES - 1, False), (BYTES + 10_000, True)])
def test_a_full_disk_is_refused_beforehand(free, fits, tmp_path, paths, monkeypatch):
    asked = []

    def usage(path):
        asked.append(path)
        return Usage(10**12, 10**12 - free, free)

    monkeypatch.setattr("captioner.data.features.shutil.disk_usage", usage)
    if fits:
        assert is_whole(open_cache(tmp_path, paths), paths)
    else:
        said = rf"needs 0\.0 GB, '{tmp_path}/cache' has 0\.0 GB free; .* --data\.cache_dir$"
        with pytest.raises(DataError, match=said):
            open_cache(tmp_path, paths)
        assert finished(tmp_path) == []
    assert all(Path(path).is_relative_to(tmp_path / "cache") for path in asked)
    assert asked


def test_an_unwritable_folder(tmp_path, paths):
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(DataError, match=rf"^cannot write the annotation cache '{tmp_path}/"):
        open_cache(tmp_path, paths, FakeEncoder(at=0, act=must_not_run))
    assert (tmp_path / "cache").is_file()
