"""The app as programs and strangers use it: endpoints, many at once, bad uploads, paths."""

import io
import json
import signal
import socket
import struct
import subprocess
import sys
import time
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError
from PIL import Image

import apps
import runs
from captioner import checkpoint, shipped
from captioner.cli import main
from captioner.decoding import Decoding
from captioner.errors import ImageError, UsageError
from captioner.ui import example_scenes
from captioner.ui_api import Endpoints
from captioner.ui_models import MAX_BEAM, Models, read
from captioner.ui_panel import OWN


@pytest.fixture(scope="module")
def client(app):
    return Client(app, verbose=False)


@pytest.fixture(scope="module")
def scenes(shapes_cache, run_folder):
    return sorted(runs.scenes(shapes_cache).glob("val/*.png"))[:10]


@pytest.fixture(scope="module")
def expected(scenes, run_folder, tmp_path_factory):
    """What the command line says of the scenes, by file name."""
    output = tmp_path_factory.mktemp("cli") / "captions.jsonl"
    command = ["caption", *map(str, scenes), "--model", str(run_folder), "--format=jsonl"]
    assert main([*command, "--output", str(output)]) == 0
    records = [json.loads(line) for line in output.read_text().splitlines()]
    return {scene.name: record for scene, record in zip(scenes, records, strict=True)}


def ask(client, photo, **named):
    return client.predict(photo=handle_file(photo), **named, api_name="/caption")


def test_a_caption_is_the_command_line_s(client, scenes, expected, run_folder):
    answer = ask(client, scenes[0])
    wanted = expected[scenes[0].name]
    assert answer["image"] == scenes[0].name  # and not where the server keeps it
    assert answer["model"] == run_folder.name
    for key in ("caption", "words"):
        assert answer[key] == wanted[key]
    # The command line asks for several pictures at once, and rounds.
    for key in ("log_prob", "word_log_probs"):
        assert answer[key] == pytest.approx(wanted[key], abs=2e-4)
    assert all(set(other) == {"caption", "log_prob"} for other in answer["alternatives"])
    greedy = ask(client, scenes[0], beam_size=1)
    assert greedy["alternatives"] == []


def test_every_model_searches_as_it_was_scored(scenes, run_folder, tmp_path):
    """Not as the first one was, and however wide a beam that is."""
    stored = checkpoint.load(run_folder)
    sizes = {"narrow": 2, "wide": MAX_BEAM + 5}
    for name, size in sizes.items():
        checkpoint.save(stored.captioner, tmp_path / name, "# Another", Decoding(beam_size=size))
    models = Models([str(run_folder), *(str(tmp_path / name) for name in sizes)], "cpu")
    found = [
        len(Endpoints(models).caption(str(scenes[0]), name, OWN, OWN)["alternatives"])
        for name in (run_folder.name, *sizes)
    ]
    assert found[:2] == [4, 1]
    assert found[2] > 4
    with pytest.raises(UsageError, match=f"from 1 to {MAX_BEAM}"):
        models.caption(read(scenes[0]), beam_size=MAX_BEAM + 1)


@pytest.mark.slow
def test_eight_clients_at_once(app, scenes, expected):
    """Nothing lost, nothing mixed up, and nobody waits longer than if they stood in line."""
    clients = [Client(app, verbose=False) for _ in range(8)]

    def timed(client, scene):
        began = time.perf_counter()
        answer = ask(client, scene)
        took = time.perf_counter() - began
        assert answer["caption"] == expected[scene.name]["caption"]
        assert answer["log_prob"] == pytest.approx(expected[scene.name]["log_prob"], abs=2e-4)
        return took

    def ratio():
        """The 95th percentile of eight clients' waits over the median wait of one."""
        alone = [timed(clients[0], scene) for scene in scenes]
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda client: [timed(client, s) for s in scenes], clients))
        together = [took for times in found for took in times]
        assert len(together) == 80
        p95, single = np.quantile(together, 0.95), np.median(alone)
        print(f"alone {single:.3f} s, of eight p95 {p95:.3f} s: {p95 / single:.1f} times")
        return p95 / single

    # Whatever else the machine does in these seconds makes waits longer, never shorter.
    assert any(ratio() <= 8 for _ in range(3))


def test_everything_that_can_be_asked(client, scenes, run_folder, hard_folder):
    photo = handle_file(scenes[0])
    expected = [run_folder.name, hard_folder.name, *shipped.models()]
    assert client.predict(api_name="/models") == expected
    told = client.predict(photo=photo, api_name="/explain")
    given = client.predict(photo=photo, sentence="A red ring!", api_name="/explain")
    assert [word["word"] for word in given["words"]] == ["a", "red", "ring"]
    assert given["image"] == scenes[0].name
    assert np.shape(given["words"][0]["weights"]) == tuple(given["grid"])
    form = {"png": "PNG", "gif": "GIF"}
    for name, kind in form.items():
        with Image.open(client.predict(photo=photo, form=name, api_name="/export")) as image:
            assert image.format == kind
    text = json.loads(
        Path(client.predict(photo=photo, form="json", api_name="/export")).read_text()
    )
    assert text == told
    page = Path(client.predict(photo=photo, form="html", api_name="/export")).read_text()
    assert told["caption"].split()[0] in page
    with Image.open(client.predict(photo=photo, word=1, api_name="/overlay")) as drawn:
        assert list(drawn.size) == told["size"]


def test_places_are_drawn_anew_in_each_call(client, scenes, hard_folder):
    asked = {"photo": handle_file(scenes[0]), "model": hard_folder.name, "sentence": "a red ring"}
    fixed = [client.predict(**asked, api_name="/explain") for _ in range(2)]
    assert fixed[0] == fixed[1]
    drawn = [client.predict(**asked, api_name="/redraw") for _ in range(8)]
    cells = {str([np.argmax(word["weights"]) for word in told["words"]]) for told in drawn}
    assert len(cells) > 1
    for told in drawn:
        for word in told["words"]:
            assert sorted(np.ravel(word["weights"]))[-2:] == [0, 1]
    assert client.predict(**asked, api_name="/explain") == fixed[0]  # the shared model is as it was


def test_endpoints_are_named_and_documented(client):
    described = client.view_api(return_format="dict")
    named = described["named_endpoints"]
    assert set(named) == {
        "/models", "/caption", "/explain", "/redraw", "/overlay", "/export", "/past",
    }  # fmt: skip
    assert not described["unnamed_endpoints"]
    for name, endpoint in named.items():
        assert endpoint["description"], name
        for parameter in endpoint["parameters"]:
            assert parameter["python_type"]["type"], name
            assert parameter["parameter_name"] == "photo" or parameter["parameter_has_default"]


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"word": 99, "api_name": "/overlay"}, "words are counted from 0"),
        ({"sentence": "?!", "api_name": "/explain"}, "at least one word"),
        ({"sentence": "a " * 50, "api_name": "/explain"}, "at most 40 words"),
        ({"layer": 7, "api_name": "/explain"}, "layer"),
        ({"api_name": "/redraw"}, "its attention is not hard"),
        ({"api_name": "/past"}, "attend"),
        ({"model": "/etc/passwd", "api_name": "/caption"}, "not in the list of choices"),
        ({"beam_size": 10_000, "api_name": "/caption"}, "greater than maximum"),
        ({"length_penalty": -2, "api_name": "/caption"}, "less than minimum"),
        ({"length_penalty": -0.5, "api_name": "/caption"}, "a length penalty from 0 to 3"),
        ({"beam_size": 0, "api_name": "/caption"}, "must be 1 or more"),
        ({"opacity": 7, "api_name": "/overlay"}, "greater than maximum"),
    ],
)
def test_a_wrong_question_is_a_sentence(named, said, client, scenes):
    with pytest.raises(AppError, match=said) as raised:
        client.predict(photo=handle_file(scenes[0]), **named)
    assert "Traceback" not in str(raised.value)


def test_no_photo(client):
    with pytest.raises(AppError, match="no photo given"):
        client.predict(photo=None, api_name="/caption")


def png(width, height):
    """A PNG file that says it is this large, with hardly any data."""

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress(bytes(1000))
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    )


def saved(form, mode="RGB", size=(60, 40), **options):
    stream = io.BytesIO()
    Image.new(mode, size, 90 if mode in ("L", "P") else None).save(stream, form, **options)
    return stream.getvalue()


def archive():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as content:
        content.writestr("a.txt", "text")
    return stream.getvalue()


SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
FRAMES = [Image.new("RGB", (40, 40), colour) for colour in ("red", "blue")]
JPEG = saved("JPEG", size=(200, 200))
BAD = {
    "text.jpg": (b"this is no picture", "text"),
    "truncated.jpg": (JPEG[: len(JPEG) // 3], "cannot be decoded"),
    "cut.png": (saved("PNG", size=(300, 300))[:60], "cannot be decoded"),
    "nothing.jpg": (b"", "an empty file"),
    "bomb.png": (png(30_000, 30_000), "too large"),
    "wide.png": (png(2**31 - 1, 2**31 - 1), "too large"),
    "flat.png": (png(0, 5), "recognisable"),
    "drawing.svg": (SVG, "SVG"),
    "drawing.png": (SVG, "SVG"),
    "page.html": (b"<!doctype html><script>alert(1)</script>", "HTML"),
    "page.jpg": (b"<html><body>hello</body></html>", "HTML"),
    "paper.pdf": (b"%PDF-1.7 ...", "PDF"),
    "archive.png": (archive(), "ZIP"),
    "video.jpg": (b"\0\0\0\x18ftypmp42" + bytes(100), "video"),
    "zeros.bmp": (bytes(5000), "unknown data"),
    "header.gif": (b"GIF89a", "GIF"),
    "<img src=x onerror=alert(1)>.jpg": (b"\x01\x02\x03", "unknown data"),
    "..%2F..%2Fetc%2Fpasswd.jpg": (b"\x01\x02\x03", "unknown data"),
    "лес 森 \u202egpj.jpg": (b"\x01\x02\x03", "unknown data"),
    "pointer.jpg": (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
}
ODD = {
    "inks.jpg": saved("JPEG", "CMYK"),
    "animated.gif": (
        lambda s: (FRAMES[0].save(s, "GIF", save_all=True, append_images=FRAMES[1:]), s.getvalue())[
            1
        ]
    )(io.BytesIO()),
    "grey.png": saved("PNG", "L"),
    "deep.tif": saved("TIFF", "I;16"),
    "tiny.bmp": saved("BMP", size=(1, 1)),
    "clear.webp": saved("WEBP", "RGBA"),
    "no-suffix": saved("PNG"),
    "../../up.png": saved("PNG"),
}


def call(app, photo, model):
    """/caption by hand, as no client would: the event and what it says."""
    asked = httpx.post(f"{app}gradio_api/call/caption", json={"data": [photo, model, 3, 1.0]})
    assert asked.status_code == 200, asked.text
    told = httpx.get(f"{app}gradio_api/call/caption/{asked.json()['event_id']}", timeout=120).text
    event, data = told.strip().split("\n")[:2]
    return event.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def upload(app, name, content):
    """As a browser sends it, but with any name."""
    answer = httpx.post(f"{app}gradio_api/upload", files={"files": (name, content)}, timeout=60)
    assert answer.status_code == 200, answer.text
    return {"path": answer.json()[0], "meta": {"_type": "gradio.FileData"}, "orig_name": name}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_upload_is_a_sentence(name, app, run_folder):
    content, said = BAD[name]
    event, answer = call(app, upload(app, name, content), run_folder.name)
    assert event == "error"
    text = answer["error"]
    assert said in text
    assert "expected a whole picture (JPEG, PNG" in text
    assert "\n" not in text
    assert "captioner-app-" not in text  # nothing of the server's folders
    assert "<img" not in text
    assert "max_pixels" not in text


@pytest.mark.parametrize("name", ODD)
def test_an_odd_upload_is_a_picture(name, app, run_folder):
    event, (answer,) = call(app, upload(app, name, ODD[name]), run_folder.name)
    assert event == "complete"
    assert answer["caption"]
    assert "/" not in answer["image"]


def test_after_bad_uploads_it_still_answers(client, scenes, expected):
    assert ask(client, scenes[1])["caption"] == expected[scenes[1].name]["caption"]


def test_a_file_over_the_limit_is_refused(app):
    answer = httpx.post(
        f"{app}gradio_api/upload", files={"files": ("big.png", bytes(26 * 2**20))}, timeout=60
    )
    assert answer.status_code == 413


@pytest.mark.parametrize("mark", [{"meta": {"_type": "gradio.FileData"}}, {}])
@pytest.mark.parametrize("form", ["{}", "../../../../../..{}", "/tmp/..{}", "file://{}"])
def test_no_other_file_is_read(form, mark, app, run_folder, scenes):
    """A picture that would be captioned if it were read, so that a refusal is no accident."""
    path = form.format(scenes[0].resolve())
    event, answer = call(app, {"path": path} | mark, run_folder.name)
    assert event == "error"
    assert "caption" not in (answer["error"] or "")


@pytest.mark.parametrize("path", ["/etc/passwd", "../../../etc/passwd", "pyproject.toml", "app.py"])
def test_no_other_file_is_served(path, app):
    for place in (path, f"/{path}", path.replace("/", "%2F")):
        answer = httpx.get(f"{app}gradio_api/file={place}")
        assert answer.status_code in (403, 404), place
        assert "root:" not in answer.text


@pytest.mark.parametrize("mark", [{"meta": {"_type": "gradio.FileData"}}, {}])
@pytest.mark.parametrize("keys", [["path"], ["path", "url"], ["url"]])
def test_addresses_are_not_fetched(keys, mark, app, run_folder):
    """The server is nobody's errand boy."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.5)
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/photo.png"
        event, _ = call(app, {"path": None} | dict.fromkeys(keys, address) | mark, run_folder.name)
        assert event == "error"
        with pytest.raises(TimeoutError):
            listener.accept()


@pytest.mark.slow
def test_what_was_uploaded_is_gone_afterwards(run_folder, scenes):
    """Also when it is told to end as containers are."""
    with apps.running("--model", str(run_folder), stop=signal.SIGTERM) as url:
        kept = Path(upload(url, "mine.png", scenes[0].read_bytes())["path"])
        assert kept.read_bytes() == scenes[0].read_bytes()
    assert not kept.exists()


def test_a_port_that_is_taken(app, run_folder):
    port = app.rstrip("/").rpartition(":")[2]
    command = ["demo", "--model", str(run_folder), "--port", port]
    done = subprocess.run(
        [sys.executable, "-m", "captioner", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "--port 7861" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_errors_name_the_file_and_not_its_folder(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"text")
    with pytest.raises(ImageError) as raised:
        read(tmp_path / "a.jpg")
    assert str(raised.value).startswith("a.jpg: found text")


def test_scenes_are_offered_to_who_knows_their_words(run_folder, tmp_path):
    offered = example_scenes(Models([str(run_folder)], "cpu"), tmp_path)
    assert offered == sorted(tmp_path.glob("*.png"))
    assert offered
    assert example_scenes(Models(["luong-dot", str(run_folder)], "cpu"), tmp_path / "none") == []


def test_models_are_named_by_their_runs(run_folder):
    several = Models([str(run_folder), str(run_folder / "model")], "cpu")
    assert several.names == [run_folder.name, f"{run_folder.name} (2)", *shipped.models()]
    with pytest.raises(UsageError, match="unknown model 'x'"):
        several.get("x")
