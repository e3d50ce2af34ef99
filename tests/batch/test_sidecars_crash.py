"""Captions in a library of tagged photos: kills and a full disk lose nothing, and repeat nothing.

``CAPTIONER_LIBRARY=10000 pytest -m slow tests/batch/test_sidecars_crash.py`` takes that many photos.
"""

import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

import libraries
import tagged_photos
from captioner.batch.batch_captioner import BatchCaptioner
from captioner.batch.sidecars import Sidecars
from captioner.cli.main import main
from captioner.errors import DataError
from tagged_photos import digests

COUNT = int(os.environ.get("CAPTIONER_LIBRARY", "120"))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]


def states(folder: Path) -> dict[Path, tuple[int, int, int]]:
    """What changes when a file is written: its inode, its size and the time of its last change."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return {f: (s.st_ino, s.st_size, s.st_ctime_ns) for f in files for s in [f.stat()]}


def killed(command: list[str], folder: Path, files: int) -> bool:
    """Kill a command when it has written so many files."""
    before = states(folder).items()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    limit = time.monotonic() + 300
    while process.poll() is None and len(states(folder).items() - before) < files:
        assert time.monotonic() < limit
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


@pytest.mark.parametrize("kind", ["embed", "xmp"])
def test_ten_kills_lose_and_repeat_nothing(kind, tiny_folder, tmp_path):
    folder = tmp_path / "photos"
    photos, described = tagged_photos.write(folder, COUNT, sidecars=kind == "xmp")
    before, pixels = tagged_photos.tags(folder), digests(photos)
    contents = digests(photos, Path.read_bytes)
    command = libraries.command(folder, f"--write={kind}", "--model", tiny_folder, "--device=cpu")

    rng = random.Random(3)
    kills = tries = 0
    while kills < 10:
        tries += 1
        assert tries <= 15  # a command that ends before its kill does not count
        kills += killed(command, folder, rng.randint(1, COUNT // 15))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    print(f"{kind}: {kills} kills, then {done.stdout.strip()}")

    written = states(folder)
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.stdout == f"0 captions written, {COUNT:,} photos left as they are\n"
    assert states(folder) == written
    parts = [file for file in written if file.name.endswith(".part")]
    assert not parts

    after = tagged_photos.tags(folder)
    assert digests(photos) == pixels
    assert kind == "embed" or digests(photos, Path.read_bytes) == contents
    alone = BatchCaptioner(str(tiny_folder), "cpu")
    sidecars = Sidecars(kind)
    for photo in rng.sample(sorted(set(photos) - set(described)), 20):
        assert sidecars.words(photo) == alone([str(photo)])[0]["caption"]
    for photo in photos:
        [file] = sidecars.targets(photo)
        found = after[str(file)]
        caption = found["XMP-dc:Description"]
        assert caption
        assert "\n" not in str(caption)
        assert (caption == "a person's words") == (photo in described)
        assert file.read_bytes().count(b"<Iptc4xmpCore:AltTextAccessibility>") == (
            photo not in described
        )
    for file, found in after.items():
        if file in before:
            assert foreign(found) == foreign(before[file]), file
        else:
            assert kind == "xmp"
            assert set(found) <= {*tagged_photos.OWN, *FILE}, file
    assert before.keys() <= after.keys()


FILE = {"File:MIMEType"}


def foreign(found: dict) -> dict:
    return {name: value for name, value in found.items() if name not in tagged_photos.OWN}


@pytest.fixture
def small_disk(tmp_path):
    """A disk with a library, and as much free space as the library has, or more."""
    place, photos = tmp_path / "disk", tmp_path / "photos"
    tagged_photos.write(photos, COUNT)
    size = sum(file.stat().st_size for file in photos.rglob("*"))
    place.mkdir()
    call = ["mount", "-t", "tmpfs", "-o", f"size={2 * size + 2**23}", "none", str(place)]
    if subprocess.run(call, capture_output=True, check=False).returncode:
        pytest.skip("NO SMALL DISK: mounting needs root")
    shutil.copytree(photos, place / "photos")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("kind", ["embed", "xmp"])
def test_a_full_disk_leaves_no_torn_photo(kind, small_disk, tiny_folder, capsys):
    """The disk has room for some photos only; with more space, the same command finishes."""
    folder = small_disk / "photos"
    copies = sorted(file for file in folder.rglob("*") if file.is_file())
    pixels, before = digests(copies), tagged_photos.tags(folder)
    free = shutil.disk_usage(small_disk).free
    (small_disk / "filler").write_bytes(b"\0" * max(0, free - 150_000 - 300 * COUNT))
    call = ["caption", str(folder), "--write", kind, "--model", str(tiny_folder)]
    assert main(call) == 2
    assert "No space left on device" in capsys.readouterr().err
    finished = sum(is_finished(kind, photo) for photo in copies)
    print(f"{kind}: the disk was full after {finished} of {len(copies)} photos")
    assert 3 < finished < len(copies)
    assert not list(folder.rglob("*.part"))
    assert digests(copies) == pixels
    after = tagged_photos.tags(folder)
    assert all(foreign(after[file]) == foreign(found) for file, found in before.items())
    (small_disk / "filler").unlink()
    assert main(call) == 0
    assert all(is_finished(kind, photo) for photo in copies)
    assert digests(copies) == pixels


def is_finished(kind: str, photo: Path) -> bool:
    try:
        return Sidecars(kind).is_finished(photo)
    except DataError:
        return False
