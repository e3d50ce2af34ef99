"""A library of photos through ``captioner caption``: everything once, resumable, in whole shards."""

import copy
import json
import shutil
import time
from pathlib import Path

import pytest

import libraries
import runs
from captioner.cli import main
from captioner.errors import CaptionerError, DataError, UsageError
from captioner.library import shards, workers
from captioner.library.batch import BatchCaptioner
from captioner.library.records import FIELDS
from captioner.library.sources import Sources
from captioner.library.workers import Workers

BROKEN = (3, 8)
IDENTITY = {"model": {"name": "m", "sha256": "00"}, "decoding": {"beam_size": 5}}


@pytest.fixture
def photos(tmp_path):
    return tmp_path / "photos", libraries.draw(tmp_path / "photos", 12, BROKEN)


def caption(inputs, model, output, *more):
    return main(["caption", str(inputs), "--model", str(model), "--output", str(output), *more])


def test_processes_caption_what_the_plain_command_does(photos, tiny_folder, tmp_path, capsys):
    folder, names = photos
    output = f"{tmp_path}/captions/"
    more = ["--batch-size=4", "--shard-size=5", "--workers=2"]
    assert caption(folder, tiny_folder, output, *more) == 1
    said = capsys.readouterr()
    libraries.whole(Path(output), names)
    assert len(list(Path(output).glob("*.jsonl"))) == 3
    assert caption(folder, tiny_folder, tmp_path / "plain.jsonl", "--format=jsonl") == 1
    plain = [json.loads(line) for line in (tmp_path / "plain.jsonl").read_text().splitlines()]
    found = {record["image"]: record for record in libraries.records(Path(output))}
    assert len({record.get("caption") for record in plain}) > 5
    for record in plain:
        own = found[record["image"]]
        assert list(own) == list(record)
        assert own.get("caption") == record.get("caption")
        assert own.get("error") == record.get("error")
        # Weights as large as this model's magnify the last bits, in which batches differ.
        assert own.get("log_prob") == pytest.approx(record.get("log_prob"), abs=1e-2)
    manifest = libraries.manifest(Path(output))
    assert (manifest["captioned"], manifest["failed"], manifest["shards"]) == (10, 2, 3)
    assert manifest["decoding"]["beam_size"] == 2
    assert manifest["model"]["name"] == str(tiny_folder)
    for number in BROKEN:
        assert f"{number:04}.jpg: found text" in said.err
        assert any(f"{number:04}.jpg" in failure["image"] for failure in manifest["failures"])
    assert "2 of 12 pictures could not be read" in said.err
    assert "10 captions in" in said.out


def test_what_is_finished_is_skipped(
    photos, tiny_folder, tmp_path, in_process, monkeypatch, capsys
):
    folder, names = photos
    output = tmp_path / "captions"
    output.mkdir()
    assert caption(folder, tiny_folder, output) == 1
    first = {file: file.read_bytes() for file in output.glob("captions-*")}
    new = libraries.draw(folder / "later", 2)
    monkeypatch.chdir(folder)  # names do not depend on where one stands
    assert caption(".", tiny_folder, output) == 1
    libraries.whole(output, names + new)
    assert all(file.read_bytes() == data for file, data in first.items())
    assert len(libraries.records(output)) == len(names) + 2
    assert "2 of 14 pictures" in capsys.readouterr().err


def test_what_failed_is_tried_again_when_asked(photos, tiny_folder, tmp_path, in_process):
    folder, names = photos
    output = tmp_path / "captions"
    output.mkdir()
    assert caption(folder, tiny_folder, output, "--shard-size=3") == 1
    shutil.copy(names[0], next(name for name in names if name.endswith("0003.jpg")))
    assert caption(folder, tiny_folder, output) == 1
    assert libraries.manifest(output)["failed"] == 2
    assert caption(folder, tiny_folder, output, "--retry") == 1
    libraries.whole(output, names)
    manifest = libraries.manifest(output)
    assert (manifest["captioned"], manifest["failed"]) == (11, 1)
    assert "0008.jpg" in manifest["failures"][0]["image"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["--beam-size=1"], "another decoding"),
        (["--format=parquet"], "another format"),
        (["--model=other"], "another model"),
        (["--format=csv"], "not csv"),
    ],
)
def test_captions_of_another_kind_are_not_mixed(
    change, said, photos, tiny_folder, tmp_path, in_process, capsys
):
    folder, _ = photos
    output = tmp_path / "captions"
    assert caption(folder, tiny_folder, f"{output}/") == 1
    before = {file: file.read_bytes() for file in output.iterdir()}
    if change == ["--model=other"]:
        change = [f"--model={runs.tiny_model(tmp_path / 'other', seed=1)}"]
    capsys.readouterr()
    assert caption(folder, tiny_folder, output, *change) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
    assert {file: file.read_bytes() for file in output.iterdir()} == before


def test_the_same_model_by_another_name_goes_on(photos, tiny_folder, tmp_path, in_process):
    folder, names = photos
    copied = shutil.copytree(tiny_folder, tmp_path / "copy")
    assert caption(folder, tiny_folder, f"{tmp_path}/captions/") == 1
    assert caption(folder, copied, f"{tmp_path}/captions/") == 1
    libraries.whole(tmp_path / "captions", names)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--engine=local"], "--output"),
        (["--format=parquet"], "--output"),
        (["--workers=0", "--output=x/"], "whole number from 1"),
        (["--output=file/"], "it is a file"),
        (["--output=full"], "not empty and holds no manifest.json"),
    ],
)
def test_a_wrong_call_for_a_library(arguments, said, photos, tmp_path, monkeypatch, capsys):
    folder, _ = photos
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "holiday.jpg").write_bytes(b"precious")
    monkeypatch.chdir(tmp_path)
    assert main(["caption", str(folder), *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "x").exists()


# ── shards ───────────────────────────────────────────────────────────────────────────────────────


def record(name):
    return {"image": name, "caption": "a\u2028dog", "words": ["a", "dog"], "log_prob": -1.5}


def failed(name):
    return {"image": name, "error": {"type": "ImageError", "message": "broken"}}


@pytest.mark.parametrize("form", shards.FORMS)
def test_shards_are_resumed_from_what_is_on_disk(form, tmp_path):
    if form == "parquet":
        pytest.importorskip("pyarrow")
    with shards.opened(tmp_path, form, IDENTITY, shard_size=2) as out:
        assert [out.claim(name) for name in "abcab"] == [True, True, True, False, False]
        for row in (record("a"), failed("b"), record("c")):
            out.add(row)
    # Killed while writing: shards of other processes' names stay hidden until they are whole.
    (tmp_path / f".captions-000002.{form}-abcdefgh").write_bytes(b"half")
    (tmp_path / ".manifest.json-abcdefgh").write_bytes(b"half")
    (tmp_path / "manifest.json").write_bytes(
        json.dumps({**libraries.manifest(tmp_path), "images": 99}).encode()
    )
    with shards.opened(tmp_path, form, IDENTITY, retry=True) as out:
        assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]
        assert (out.counts["captioned"], out.counts["failed"], out.retried) == (2, 0, ["b"])
        assert [out.claim(name) for name in "abcd"] == [False, True, False, True]
        out.add(record("b"))
    assert libraries.manifest(tmp_path)["images"] == 3
    assert [file.name for file in sorted(tmp_path.iterdir())] == [
        *(f"captions-00000{number}.{form}" for number in range(3)),
        "manifest.json",
    ]


def test_rows_read_back_as_written(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    told = {**record("a"), "word_log_probs": [-1.0, -0.5], "model": "m"}
    for form in shards.FORMS:
        with shards.opened(tmp_path / form, form, IDENTITY) as out:
            out.add(told)
            out.add(failed("b"))
    assert libraries.records(tmp_path / "jsonl") == [told, failed("b")]
    table = parquet.read_table(tmp_path / "parquet" / "captions-000000.parquet")
    assert tuple(table.column_names) == FIELDS
    assert [
        {name: value for name, value in row.items() if value is not None}
        for row in table.to_pylist()
    ] == [told, failed("b")]


def test_interrupted_work_keeps_what_was_finished(tmp_path):
    def work():
        with shards.opened(tmp_path, "jsonl", IDENTITY) as out:
            out.add(record("a"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert not libraries.manifest(tmp_path)["finished"]
    with shards.opened(tmp_path, "jsonl", IDENTITY) as out:
        assert not out.claim("a")


def test_two_do_not_write_into_one_folder(tmp_path):
    with (
        shards.opened(tmp_path, "jsonl", IDENTITY),
        pytest.raises(UsageError, match="another captioner is writing"),
        shards.opened(tmp_path, "jsonl", IDENTITY),
    ):
        pass


@pytest.mark.parametrize("damage", ["{", "[]\n", '{"caption": "a"}\n', '{"image": 3}\n', "\xff\n"])
def test_a_damaged_shard_is_named(damage, tmp_path):
    with shards.opened(tmp_path, "jsonl", IDENTITY) as out:
        out.add(record("a"))
    (tmp_path / "captions-000000.jsonl").write_bytes(damage.encode("latin-1"))
    with (
        pytest.raises(DataError, match=r"captions-000000\.jsonl"),
        shards.opened(tmp_path, "jsonl", IDENTITY),
    ):
        pass


@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"format_version": 99}'])
def test_a_damaged_manifest_is_named(damage, tmp_path):
    (tmp_path / "manifest.json").write_text(damage)
    with (
        pytest.raises(DataError, match=r"manifest\.json"),
        shards.opened(tmp_path, "jsonl", IDENTITY),
    ):
        pass


# ── sources ──────────────────────────────────────────────────────────────────────────────────────


def test_a_store_gives_what_a_folder_does(photos, tiny_folder):
    """file:// is a store like the others to pyarrow, with another address."""
    pytest.importorskip("pyarrow")
    folder, names = photos
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "a.jpg").touch()
    (folder / "notes.txt").touch()
    (folder / "odd name #1%.jpg").write_bytes(Path(names[0]).read_bytes())
    names = list(Sources([str(folder)]))
    sources = copy.copy(Sources([f"file://{folder}"]))
    assert list(sources) == [f"file://{name}" for name in names]
    inside = {"image": [*names, "file:///nowhere.jpg", f"{folder}/gone.jpg"]}
    outside = {"image": [*sources, f"file://{folder}/gone.jpg"]}
    plain = BatchCaptioner(str(tiny_folder), "cpu")(inside)
    stored = BatchCaptioner(str(tiny_folder), "cpu", sources)(outside)
    assert stored["caption"][: len(names)] == plain["caption"][: len(names)]
    assert "cannot be fetched" in stored["error"][-1]["message"]
    assert f"file://{folder}/gone.jpg" in stored["error"][-1]["message"]
    broken = [error["message"] for error in stored["error"][:-1] if error]
    assert [f"{number:04}.jpg" in " ".join(broken) for number in BROKEN] == [True, True]


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("s3://key:hush@bucket/photos?endpoint_override=127.0.0.1:9&scheme=http", "NETWORK"),
        ("nonsense://bucket/photos", "nonsense"),
        ("file:///no/such/folder", "no such object or folder"),
    ],
)
def test_a_store_that_cannot_be_reached(address, said, capsys):
    pytest.importorskip("pyarrow")
    began = time.monotonic()
    assert main(["caption", address, "--output=x/"]) == 2
    assert time.monotonic() - began < 60
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
    assert "hush" not in error
    assert not Path("x").exists()


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("pyarrow", ["s3://bucket/photos", "--output=x/"]),
        ("ray", ["{photos}", "--output=x/", "--engine=ray"]),
    ],
)
def test_what_is_not_installed_is_named(module, arguments, photos, monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, module, None)
    arguments = [argument.format(photos=photos[0]) for argument in arguments]
    assert main(["caption", *arguments]) == 2
    error = capsys.readouterr().err
    assert "pip install 'captioner[ray]'" in error
    assert len(error.splitlines()) == 1


def test_a_store_needs_a_folder_to_write_into(capsys):
    assert main(["caption", "s3://bucket/photos"]) == 2
    assert "--output DIR/" in capsys.readouterr().err


# ── workers ──────────────────────────────────────────────────────────────────────────────────────


def test_a_photo_that_kills_or_hangs_costs_only_itself(monkeypatch):
    monkeypatch.setattr(workers, "PATIENCE", 2.0)
    monkeypatch.setattr(workers, "_serve", libraries.serve)
    names = [f"{number:04}.jpg" for number in range(24)]
    with Workers({"kills": "0005.jpg", "hangs": "0014.jpg"}, count=2) as engine:
        found = list(engine([names[start : start + 6] for start in range(0, 24, 6)]))
        processes = [worker.process for worker in engine._workers]
    assert sorted(record["image"] for record in found) == names
    errors = {record["image"]: record["error"] for record in found if "error" in record}
    assert sorted(errors) == ["0005.jpg", "0014.jpg"]
    assert "0005.jpg: found a picture that ends the process" in errors["0005.jpg"]["message"]
    assert "takes more than 2 seconds" in errors["0014.jpg"]["message"]
    assert not any(process.is_alive() for process in processes)


def test_processes_end_when_they_are_left_alone(monkeypatch):
    """Whoever started them was killed: the other end of their connection closes, and that is all."""
    monkeypatch.setattr(workers, "_serve", libraries.serve)
    with Workers({}, count=1) as engine:
        (worker,) = engine._workers
        worker.connection.close()
        worker.process.join(60)
        assert worker.process.exitcode == 0


@pytest.mark.parametrize(
    ("options", "said"), [({"model": "nowhere"}, "nowhere"), ({"device": "gpu7"}, "gpu7")]
)
def test_a_model_that_cannot_be_loaded_is_said_once(options, said, tiny_folder):
    with pytest.raises(CaptionerError, match=said):
        Workers({"model": str(tiny_folder), "device": "cpu", **options})
