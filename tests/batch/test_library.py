"""``captioner caption`` into a folder: every photo once, resumable, in complete shards."""

import copy
import errno
import json
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import libraries
import runs
from captioner.batch import local_engine
from captioner.batch.batch_captioner import BatchCaptioner
from captioner.batch.inputs import Sources
from captioner.batch.local_engine import LocalEngine
from captioner.batch.output_folder import Shards
from captioner.cli import caption_outputs
from captioner.cli.main import main
from captioner.errors import CaptionerError, DataError, UsageError

BROKEN = (3, 8)
IDENTITY = {"model": {"name": "m", "sha256": "00"}, "decoding": {"beam_size": 5}}


@pytest.fixture
def photos(tmp_path):
    return tmp_path / "photos", libraries.draw(tmp_path / "photos", 12, BROKEN)


def caption(inputs, model, output, *more):
    return main(["caption", str(inputs), "--model", str(model), "--output", str(output), *more])


def test_a_folder_has_the_captions_of_the_plain_command(photos, tiny_folder, tmp_path, capsys):
    folder, names = photos
    output = tmp_path / "captions"
    more = ["--batch-size=4", "--shard-size=5", "--workers=2"]
    assert caption(folder, tiny_folder, f"{output}/", *more) == 1
    printed = capsys.readouterr()
    libraries.whole(output, names)
    assert len(list(output.glob("*.jsonl"))) == 3
    assert caption(folder, tiny_folder, tmp_path / "plain.jsonl", "--format=jsonl") == 1
    plain = [json.loads(line) for line in (tmp_path / "plain.jsonl").read_text().splitlines()]
    records = {record["image"]: record for record in libraries.records(output)}
    assert len({record.get("caption") for record in plain}) > 3
    for expected in plain:
        actual = records[expected["image"]]
        assert list(actual) == list(expected)
        assert actual.get("caption") == expected.get("caption")
        assert actual.get("error") == expected.get("error")
        # The large weights of this model magnify the rounding differences between batches.
        assert actual.get("log_prob") == pytest.approx(expected.get("log_prob"), abs=1e-2)
    manifest = libraries.manifest(output)
    assert (manifest["captioned"], manifest["failed"], manifest["shards"]) == (10, 2, 3)
    assert manifest["decoding"]["beam_size"] == 2
    assert manifest["model"]["name"] == str(tiny_folder)
    for number in BROKEN:
        assert f"{number:04}.jpg is not an image" in printed.err
        assert any(f"{number:04}.jpg" in failure["image"] for failure in manifest["failures"])
    assert "2 of 12 photos could not be read" in printed.err
    assert "10 captions in" in printed.out


def test_many_photos_without_a_folder_use_all_cores_too(
    photos, tiny_folder, monkeypatch, capsys, caplog
):
    """In the order of the names, though the processes finish in any order, and with their notices."""
    cut = Path(photos[1][0])
    cut.write_bytes(cut.read_bytes()[:-40])
    command = ["caption", str(photos[0]), "--model", str(tiny_folder), "--batch-size=1"]
    assert main(command) == 1
    expected = capsys.readouterr().out
    files = [line.split("\t")[0] for line in expected.splitlines()]
    assert files == sorted(files)
    assert len(files) == 10
    workers = []
    start = LocalEngine._start_worker
    monkeypatch.setattr(
        LocalEngine, "_start_worker", lambda self: workers.append(start(self)) or workers[-1]
    )
    monkeypatch.setattr(caption_outputs, "FEW", 4)
    monkeypatch.setattr(local_engine, "_cores", lambda: 2)
    assert main(command) == 1
    assert capsys.readouterr().out == expected
    assert len(workers) == 2
    assert sum("is cut off" in record.getMessage() for record in caplog.records) == 2


def test_captions_and_a_bar_appear_on_a_terminal(photos, tiny_folder):
    """In a pipe there are the captions alone, one by one."""
    folder, names = photos
    command = libraries.command(folder, "--model", tiny_folder, "--batch-size=1")
    shown = libraries.on_terminal(command)
    assert "loading the model" in shown
    assert "12/12" in shown
    assert all(name in shown for name in names)
    done = libraries.call(*command[4:])
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) == 10
    assert "/12" not in done.stdout + done.stderr.replace("2 of 12", "")
    assert "\x1b" not in done.stdout + done.stderr


def test_a_second_call_skips_finished_photos_and_retries_failed_ones_if_asked(
    photos, tiny_folder, tmp_path, in_process, monkeypatch, capsys
):
    folder, names = photos
    output = tmp_path / "captions"
    output.mkdir()
    assert caption(folder, tiny_folder, output, "--shard-size=3") == 1
    first = {file: file.read_bytes() for file in output.glob("captions-*")}
    names += libraries.draw(folder / "later", 2)
    copied = shutil.copytree(tiny_folder, tmp_path / "copy")  # the same model by another name
    monkeypatch.chdir(folder)  # photos are named by absolute paths
    assert caption(".", copied, output) == 1
    libraries.whole(output, names)
    assert all(file.read_bytes() == data for file, data in first.items())
    assert "2 of 14 photos" in capsys.readouterr().err
    shutil.copy(names[0], next(name for name in names if name.endswith("0003.jpg")))
    assert caption(folder, tiny_folder, output, "--retry") == 1
    libraries.whole(output, names)
    manifest = libraries.manifest(output)
    assert (manifest["captioned"], manifest["failed"]) == (13, 1)
    assert "0008.jpg" in manifest["failures"][0]["image"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ["--beam-size=1"],
            "captions of another decoding (there --beam-size 2, now --beam-size 1)",
        ),
        (["--format=parquet"], "another format"),
        (["--model=other", "--beam-size=1"], "another model (there '"),
    ],
)
def test_captions_of_another_kind_are_not_mixed(
    change, message, photos, tiny_folder, tmp_path, in_process, monkeypatch, refused
):
    monkeypatch.chdir(tmp_path)
    runs.tiny_model(Path("other"), seed=1)
    output = tmp_path / "captions"
    assert caption("photos", tiny_folder, f"{output}/") == 1
    before = {file: file.read_bytes() for file in output.iterdir()}
    call = ["caption", "photos", "--model", tiny_folder, "--output", output, *change]
    assert message in refused(*call)
    assert {file: file.read_bytes() for file in output.iterdir()} == before


# Shards


def record(name):
    return {"image": name, "caption": "a\u2028dog", "words": ["a", "dog"], "log_prob": -1.5}


def failed(name):
    return {"image": name, "error": {"type": "ImageError", "message": "broken"}}


def open_jsonl(folder):
    return Shards(folder, "jsonl", IDENTITY).opened()


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_shards_are_resumed_from_what_is_on_disk(form, tmp_path):
    if form == "parquet":
        pytest.importorskip("pyarrow")
    with Shards(tmp_path, form, IDENTITY, shard_size=2).opened() as out:
        assert [out.claim(name) for name in "abcab"] == [True, True, True, False, False]
        for row in (record("a"), failed("b"), record("c")):
            out.add(row)
    # Files of a killed process, and a manifest older than the shards.
    (tmp_path / ".0123456789abcdef.captioner.part").write_bytes(b"half")
    stale = {**libraries.manifest(tmp_path), "images": 99}
    (tmp_path / "manifest.json").write_text(json.dumps(stale))
    with Shards(tmp_path, form, IDENTITY, retry=True).opened() as out:
        assert not list(tmp_path.glob(".*.part"))
        assert (out.counts["captioned"], out.counts["failed"], out.retried) == (2, 0, ["b"])
        assert [out.claim(name) for name in "abcd"] == [False, True, False, True]
        out.add(record("b"))
    assert libraries.manifest(tmp_path)["images"] == 3
    shards = [f"captions-00000{number}.{form}" for number in range(3)]
    assert sorted(file.name for file in tmp_path.iterdir()) == [*shards, "manifest.json"]


def test_photos_whose_caption_was_left_out_are_counted_apart(tmp_path):
    for _ in range(2):  # counted again from the shards
        with open_jsonl(tmp_path) as out:
            if out.claim("a"):
                for row in (record("a"), {**record("b"), "caption": "", "words": []}, failed("c")):
                    out.add(row)
        found = libraries.manifest(tmp_path)
        counts = [found[name] for name in ("images", "captioned", "empty", "failed")]
        assert counts == [3, 1, 1, 1]


def test_rows_read_back_as_written(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{**record("a"), "word_log_probs": [-1.0, -0.5], "model": "m"}, failed("b")]
    for form in ("jsonl", "parquet"):
        with Shards(tmp_path / form, form, IDENTITY).opened() as out:
            for row in rows:
                out.add(row)
    assert libraries.records(tmp_path / "jsonl") == rows
    table = parquet.read_table(tmp_path / "parquet" / "captions-000000.parquet").to_pylist()
    assert [{k: v for k, v in row.items() if v is not None} for row in table] == rows


def test_an_interruption_keeps_finished_records(tmp_path):
    with suppress(KeyboardInterrupt), open_jsonl(tmp_path) as out:
        out.add(record("a"))
        raise KeyboardInterrupt
    assert not libraries.manifest(tmp_path)["finished"]
    with open_jsonl(tmp_path) as out:
        assert not out.claim("a")


def test_two_processes_do_not_write_into_one_folder(tmp_path):
    refusal = pytest.raises(UsageError, match="another captioner is writing")
    with open_jsonl(tmp_path), refusal, open_jsonl(tmp_path):
        pass


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_that_cannot_lock(code, tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def refuse(*_: object) -> None:
        raise OSError(code, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with open_jsonl(tmp_path) as out:
        out.add(record("a"))
    libraries.whole(tmp_path, ["a"])


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *[("captions-000000.jsonl", text) for text in ("{", "[]\n", '{"image": 3}\n', "\xff\n")],
        *[("manifest.json", text) for text in ("", "[]", "{}", '{"format_version": 99}')],
    ],
)
def test_a_damaged_file_is_named(name, damage, tmp_path):
    with open_jsonl(tmp_path) as out:
        out.add(record("a"))
    (tmp_path / name).write_bytes(damage.encode("latin-1"))
    with pytest.raises(DataError, match=name), open_jsonl(tmp_path):
        pass


# Sources


def test_an_object_store_gives_the_captions_of_a_folder(photos, tiny_folder):
    """To pyarrow, file:// is an object store."""
    pytest.importorskip("pyarrow")
    folder, names = photos
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "a.jpg").touch()
    (folder / "@eaDir").mkdir()
    (folder / "@eaDir" / "a.jpg").touch()
    (folder / "notes.txt").touch()
    (folder / "odd name #1%.jpg").write_bytes(Path(names[0]).read_bytes())
    sources = copy.copy(Sources([f"file://{folder}"]))
    names = list(Sources([str(folder)]))
    assert list(sources) == [f"file://{name}" for name in names]
    missing = f"file://{folder}/missing.jpg"
    local = BatchCaptioner(str(tiny_folder), "cpu")(names)
    remote = BatchCaptioner(str(tiny_folder), "cpu", sources)([*sources, missing])
    captions = [[row.get("caption") for row in rows] for rows in (local, remote[:-1])]
    assert captions[0] == captions[1]
    assert f"{missing}: found an object that cannot be fetched" in remote[-1]["error"]["message"]
    broken = " ".join(row["error"]["message"] for row in remote[:-1] if "error" in row)
    assert all(f"{number:04}.jpg" in broken for number in BROKEN)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("s3://key:hush@bucket/photos?endpoint_override=127.0.0.1:9&scheme=http", "NETWORK"),
        ("nonsense://bucket/photos", "nonsense"),
        ("file:///no/such/folder", "no such object or folder"),
    ],
)
def test_an_unreachable_store_is_reported_without_its_key(address, message, refused):
    pytest.importorskip("pyarrow")
    start = time.monotonic()
    error = refused("caption", address, "--output=x/")
    assert time.monotonic() - start < 60
    assert message in error
    assert "hush" not in error
    assert not Path("x").exists()


def test_an_object_store_is_listed_folder_by_folder(photos):
    pytest.importorskip("pyarrow")
    folder, names = photos
    stream = iter(Sources([f"file://{folder}"]))
    assert next(stream) == f"file://{names[0]}"
    (folder / "1" / "zzz.jpg").touch()
    assert list(stream)[-1] == f"file://{folder}/1/zzz.jpg"


@pytest.mark.parametrize(
    "arguments", ["s3://b/p", "photos --format=parquet", "photos --engine=ray"]
)
def test_a_missing_package_is_named(arguments, photos, tmp_path, monkeypatch, refused):
    monkeypatch.setitem(sys.modules, "ray" if "ray" in arguments else "pyarrow", None)
    monkeypatch.chdir(tmp_path)
    error = refused("caption", *arguments.split(), "--output=x/")
    assert "pip install 'captioner[ray]'" in error


# Workers


def test_a_photo_that_kills_or_hangs_its_process_does_not_affect_the_others(monkeypatch):
    monkeypatch.setattr(local_engine, "TIMEOUT", 2.0)
    monkeypatch.setattr(local_engine, "_serve", libraries.serve)
    names = [f"{number:04}.jpg" for number in range(24)]
    with LocalEngine({"kills": "0005.jpg", "hangs": "0014.jpg"}, count=2) as engine:
        rows = list(engine.rows([names[start : start + 6] for start in range(0, 24, 6)]))
        processes = [worker.process for worker in engine._workers]
    assert sorted(row["image"] for row in rows) == names
    errors = {row["image"]: row["error"]["message"] for row in rows if "error" in row}
    assert sorted(errors) == ["0005.jpg", "0014.jpg"]
    assert "0005.jpg: found a photo that ends the process" in errors["0005.jpg"]
    assert "takes more than 2 seconds" in errors["0014.jpg"]
    assert not any(process.is_alive() for process in processes)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts open files in /proc")
def test_photos_that_kill_their_process_leave_no_open_files(monkeypatch):
    monkeypatch.setattr(local_engine, "_serve", libraries.serve)
    with LocalEngine({"kills": "a.jpg"}, count=1) as engine:
        before = len(list(Path("/proc/self/fd").iterdir()))
        assert len(list(engine.rows([["a.jpg"]] * 4))) == 4
        assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_an_error_that_a_worker_reports_is_raised(monkeypatch):
    monkeypatch.setattr(local_engine, "_serve", libraries.serve)
    with pytest.raises(PermissionError, match="not readable"):
        LocalEngine({"greeting": PermissionError("the model is not readable")}, count=1)
    with (
        LocalEngine({"fails": "a.jpg"}, count=1) as engine,
        pytest.raises(OSError, match=r"a\.jpg: the disk failed"),
    ):
        list(engine.rows([["a.jpg"]]))


def test_workers_end_when_their_parent_is_killed(monkeypatch):
    """A worker ends when the other end of its connection closes."""
    monkeypatch.setattr(local_engine, "_serve", libraries.serve)
    with LocalEngine({}, count=1) as engine:
        (worker,) = engine._workers
        worker.connection.close()
        worker.process.join(60)
        assert worker.process.exitcode == 0


@pytest.mark.parametrize("options", [{"model": "nowhere"}, {"device": "gpu7"}])
def test_a_model_that_cannot_be_loaded(options, tiny_folder):
    with pytest.raises(CaptionerError, match="|".join(options.values())):
        LocalEngine({"model": str(tiny_folder), "device": "cpu", **options})
