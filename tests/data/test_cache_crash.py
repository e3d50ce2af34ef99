"""The annotation cache under crashes, killed processes and several processes at once."""

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from captioner.data.cache import AnnotationCache
from captioner.errors import DataError
from tests.data.test_cache import (  # noqa: F401 - a fixture
    FakeEncoder,
    caches,
    finished,
    is_complete,
    open_cache,
    paths,
)

# ruff: noqa: F811 - tests take the imported fixture as an argument

ROOT = Path(__file__).parents[2]


def crash():
    raise RuntimeError("a crash")


def test_an_exception_keeps_what_is_finished(tmp_path, paths):
    with pytest.raises(RuntimeError, match="a crash"):
        open_cache(tmp_path, paths, FakeEncoder(at=2, act=crash), shard_size=3)
    assert finished(tmp_path) == ["00000.safetensors", "00001.safetensors"]
    encoder = FakeEncoder()
    assert is_complete(open_cache(tmp_path, paths, encoder, shard_size=3), paths)
    assert encoder.calls == 1


def test_a_crash_while_finishing_leaves_nothing(tmp_path, paths, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("captioner.files.os.fsync", full)
        with pytest.raises(DataError, match=r"cannot write the annotation cache .*No space left"):
            open_cache(tmp_path, paths)
    assert finished(tmp_path) == []
    assert not list((tmp_path / "cache").rglob("*.part"))
    assert is_complete(open_cache(tmp_path, paths), paths)


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="kill -9 is for POSIX")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_kill_9_at_every_step_of_filling(tmp_path, paths, monkeypatch):
    """Before each file operation: finished shards stay, the others are computed again."""
    whole = AnnotationCache.open(
        tmp_path / "whole", paths, FakeEncoder(), batch_size=3, shard_size=3
    )
    killed = 0
    for step in itertools.count():
        (tmp_path / f"{step}").mkdir()
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)  # the parent's others were not forked with it
            left = itertools.count(step, -1)

            def counted(real, left=left):
                def call(*args, **kwargs):
                    if next(left) == 0:
                        kill()
                    return real(*args, **kwargs)

                return call

            monkeypatch.setattr("captioner.files.os.fsync", counted(os.fsync))
            for name in ("replace", "open", "unlink"):
                monkeypatch.setattr(Path, name, counted(getattr(Path, name)))
            open_cache(tmp_path / f"{step}", paths, shard_size=3)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) == 0:
            break
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
        killed += 1
        done, encoder = len(finished(tmp_path / f"{step}")), FakeEncoder()
        cache = open_cache(tmp_path / f"{step}", paths, encoder, shard_size=3)
        assert encoder.calls == 3 - done
        assert all(torch.equal(cache[path].vectors, whole[path].vectors) for path in paths)
        assert names(cache.folder) == names(whole.folder)
    assert killed >= 3 * 4


def wait_for(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def in_another_process(act: str, tmp_path, paths) -> subprocess.Popen:
    code = f"""
import sys
from pathlib import Path
import tests.data.test_cache_crash as t
folder, *paths = sys.argv[1:]
folder = Path(folder)
encoder = t.FakeEncoder(at=1, act=lambda: t.{act})
t.open_cache(folder, paths, encoder, shard_size=3)
(folder / f"calls-{{encoder.calls}}").touch()
"""
    return subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), *paths],
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"},
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_processes_share_the_work(tmp_path, paths):
    """While one is delayed in its second shard, the other computes the third, and no shard twice."""
    with in_another_process("wait_for((folder / 'go').exists)", tmp_path, paths) as other:
        wait_for(lambda: finished(tmp_path) == ["00000.safetensors"])
        encoder = FakeEncoder(at=0, act=(tmp_path / "go").touch)
        assert is_complete(open_cache(tmp_path, paths, encoder, shard_size=3), paths)
        _, errors = other.communicate()
    assert other.returncode == 0, errors
    assert (tmp_path / "calls-2").exists()
    assert encoder.calls == 1


def test_a_killed_process_loses_only_its_current_shard(tmp_path, paths):
    """It holds the lock of the second shard, which another process takes over."""
    with in_another_process("wait_for((folder / 'never').exists)", tmp_path, paths) as other:
        wait_for(lambda: finished(tmp_path) == ["00000.safetensors"])
        wait_for(lambda: "00001.lock" in names(caches(tmp_path)[0]))
        encoder = FakeEncoder(at=0, act=other.kill)
        cache = open_cache(tmp_path, paths, encoder, shard_size=3)
    assert is_complete(cache, paths)
    assert encoder.calls == 2
    assert names(cache.folder) == finished(tmp_path)
