"""The endpoints of the app: results, concurrency, bad uploads and forged requests."""

import io
import itertools
import json
import re
import signal
import socket
import struct
import subprocess
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError
from PIL import Image
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

import apps
import runs
from captioner import checkpoint, resources
from captioner.app.example_photos import FOLDER, examples
from captioner.app.served_models import MAX_BEAM, Models
from captioner.app.server import Gate, hosts_to_answer
from captioner.cli.main import main
from captioner.decoding import Decoding
from captioner.errors import UsageError
from captioner.overlay import export


@pytest.fixture(scope="module")
def client(app):
    return Client(app, verbose=False)


@pytest.fixture(scope="module")
def scenes(shapes_cache, run_folder):
    return sorted(runs.scenes(shapes_cache).glob("val/*.png"))[:10]


@pytest.fixture(scope="module")
def expected(scenes, run_folder, tmp_path_factory):
    """The output of the command line, by file name."""
    output = tmp_path_factory.mktemp("cli") / "captions.jsonl"
    command = ["caption", *map(str, scenes), "--model", str(run_folder), "--format=jsonl"]
    assert main([*command, "--output", str(output)]) == 0
    records = [json.loads(line) for line in output.read_text().splitlines()]
    return {scene.name: record for scene, record in zip(scenes, records, strict=True)}


def caption(client, photo, **options):
    return client.predict(photo=handle_file(photo), **options, api_name="/caption")


def test_captions_are_those_of_the_command_line(client, scenes, expected, run_folder):
    answer = caption(client, scenes[0])
    record = expected[scenes[0].name]
    assert answer["image"] == scenes[0].name  # without the folder of the server
    assert answer["model"] == run_folder.name
    for key in ("caption", "words"):
        assert answer[key] == record[key]
    for key in ("log_prob", "word_log_probs"):  # batched, and rounded
        assert answer[key] == pytest.approx(record[key], abs=2e-4)
    scores = [other["score"] for other in answer["alternatives"]]
    assert scores == sorted(scores, reverse=True)
    greedy = caption(client, scenes[0], beam_size=1)
    assert greedy["alternatives"] == []


def test_every_model_uses_its_own_beam_size(scenes, run_folder, tmp_path):
    stored = checkpoint.load(run_folder)
    sizes = {"narrow": 2, "wide": MAX_BEAM + 5}
    for name, size in sizes.items():
        checkpoint.save(stored.captioner, tmp_path / name, "# Another", Decoding(beam_size=size))
    models = Models([str(run_folder), *(str(tmp_path / name) for name in sizes)], "cpu")
    counts = [len(models.answer(scenes[0], name).captions) for name in (run_folder.name, *sizes)]
    assert counts[:2] == [5, 2]
    assert counts[2] > 5
    scores = [caption.score for caption in models.answer(scenes[0], "wide").captions]
    assert scores == sorted(scores, reverse=True)  # the number that ranks
    with pytest.raises(UsageError, match=f"from 1 to {MAX_BEAM}"):
        models.answer(scenes[0], run_folder.name, beam_size=MAX_BEAM + 1)


@pytest.mark.slow
@pytest.mark.alone
def test_eight_clients_at_once(app, scenes, expected):
    """All answers are right, and the clients take turns: none waits for all photos of another."""
    clients = [Client(app, verbose=False) for _ in range(8)]

    def wait(client):
        """Return the mean wait of a client for one caption."""
        began = time.perf_counter()
        for scene in scenes:
            assert caption(client, scene)["caption"] == expected[scene.name]["caption"]
        return (time.perf_counter() - began) / len(scenes)

    def slowest():
        """Return the mean wait of the slowest of eight clients, in waits of a client alone."""
        alone = wait(clients[0])
        with ThreadPoolExecutor(8) as pool:
            together = list(pool.map(wait, clients))
        assert max(together) <= 3 * min(together)
        return max(together) / alone

    # Eight, where nothing is computed at the same time. Other processes make waits longer.
    assert any(slowest() <= 12 for _ in range(3))


def test_every_endpoint(client, scenes, run_folder, hard_folder):
    photo = handle_file(scenes[0])
    expected = [run_folder.name, hard_folder.name, *resources.models()]
    assert client.predict(api_name="/models") == expected
    own = client.predict(photo=photo, api_name="/explain")
    given = client.predict(photo=photo, sentence="A red ring!", api_name="/explain")
    assert [word["word"] for word in given["words"]] == ["a", "red", "ring"]
    assert given["image"] == scenes[0].name
    assert np.shape(given["words"][0]["weights"]) == tuple(given["grid"])
    with Image.open(client.predict(photo=photo, word=1, api_name="/overlay")) as drawn:
        assert list(drawn.size) == own["size"]
    exported = {
        name: Path(client.predict(photo=photo, form=name, api_name="/export"))
        for name in export.names()
    }
    for name, file in exported.items():
        assert file.name == f"{scenes[0].stem}{export.formats([name])[0].suffix}"
    for name in ("png", "gif"):
        with Image.open(exported[name]) as image:
            assert image.format == name.upper()
    assert json.loads(exported["json"].read_text()) == own
    assert own["caption"].split()[0] in exported["html"].read_text()


def test_redraw_samples_new_cells_in_each_call(client, scenes, hard_folder):
    query = {"photo": handle_file(scenes[0]), "model": hard_folder.name, "sentence": "a red ring"}
    fixed = client.predict(**query, api_name="/explain")
    samples = [client.predict(**query, api_name="/redraw") for _ in range(8)]
    cells = {str([np.argmax(word["weights"]) for word in drawn["words"]]) for drawn in samples}
    assert len(cells) > 1
    for word in [word for drawn in samples for word in drawn["words"]]:
        assert sorted(np.ravel(word["weights"]))[-2:] == [0, 1]
    assert client.predict(**query, api_name="/explain") == fixed  # the model has not changed


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
    ("options", "message"),
    [
        ({"word": 99, "api_name": "/overlay"}, "words are counted from 0"),
        ({"sentence": "?!", "api_name": "/explain"}, "at least one word"),
        ({"sentence": "a " * 50, "api_name": "/explain"}, "at most 40 words"),
        ({"layer": 7, "api_name": "/explain"}, "layer"),
        ({"api_name": "/redraw"}, "no hard attention to sample"),
        ({"api_name": "/past"}, "attend"),
        ({"model": "/etc/passwd", "api_name": "/caption"}, "not in the list of choices"),
        ({"beam_size": 10_000, "api_name": "/caption"}, "greater than maximum"),
        ({"length_penalty": -2, "api_name": "/caption"}, "less than minimum"),
        (
            {"length_penalty": -0.5, "api_name": "/caption"},
            "length_penalty must be a number from 0 to 3",
        ),
        ({"beam_size": 0, "api_name": "/caption"}, "from 1 to"),
        ({"opacity": 7, "api_name": "/overlay"}, "greater than maximum"),
        ({"photo": None, "api_name": "/caption"}, "no photo given"),
    ],
)
def test_errors_are_one_line(options, message, client, scenes):
    with pytest.raises(AppError, match=message) as raised:
        client.predict(**{"photo": handle_file(scenes[0]), **options})
    assert "Traceback" not in str(raised.value)


def png_of_size(width, height):
    """A PNG file that declares this size and has hardly any data."""

    def chunk(kind, data):
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + checksum

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = chunk(b"IDAT", zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + data + chunk(b"IEND", b"")


def encode(form, mode="RGB", size=(60, 40), **options):
    stream = io.BytesIO()
    Image.new(mode, size, 90 if mode in ("L", "P") else None).save(stream, form, **options)
    return stream.getvalue()


SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
BAD = {
    "text.jpg": (b"this is no picture", "text"),
    "truncated.jpg": (encode("JPEG", size=(200, 200))[:300], "cannot be decoded"),
    "cut.png": (encode("PNG", size=(300, 300))[:60], "cannot be decoded"),
    "nothing.jpg": (b"", "an empty file"),
    "bomb.png": (png_of_size(30_000, 30_000), "too large"),
    "flat.png": (png_of_size(0, 5), "cannot be decoded"),
    "drawing.svg": (SVG, "SVG"),
    "drawing.png": (SVG, "SVG"),
    "page.html": (b"<!doctype html><script>alert(1)</script>", "HTML"),
    "paper.pdf": (b"%PDF-1.7 ...", "PDF"),
    "archive.png": (b"PK\x03\x04", "ZIP"),
    "video.jpg": (b"\0\0\0\x18ftypmp42" + bytes(100), "video"),
    "<img src=x onerror=alert(1)>.jpg": (b"\x01\x02\x03", "unknown data"),
    "..%2F..%2Fetc%2Fpasswd.jpg": (b"\x01\x02\x03", "unknown data"),
    "лес 森 \u202egpj.jpg": (b"\x01\x02\x03", "unknown data"),
}
ODD = {
    "inks.jpg": encode("JPEG", "CMYK"),
    "animated.gif": encode("GIF", save_all=True, append_images=[Image.new("RGB", (60, 40), "red")]),
    "deep.tif": encode("TIFF", "I;16"),
    "tiny.bmp": encode("BMP", size=(1, 1)),
    "clear.webp": encode("WEBP", "RGBA"),
    "no-suffix": encode("PNG"),
    "../../up.png": encode("PNG", "L"),
}


def call(app, photo, model):
    """Call /caption without a client; return the event and its data."""
    posted = httpx.post(f"{app}gradio_api/call/caption", json={"data": [photo, model, 3, 1.0]})
    assert posted.status_code == 200, posted.text
    url = f"{app}gradio_api/call/caption/{posted.json()['event_id']}"
    event, data = httpx.get(url, timeout=120).text.strip().split("\n")[:2]
    return event.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def upload(app, name, content):
    """Upload as a browser does, with any name."""
    answer = httpx.post(f"{app}gradio_api/upload", files={"files": (name, content)}, timeout=60)
    assert answer.status_code == 200, answer.text
    return {"path": answer.json()[0], "meta": {"_type": "gradio.FileData"}, "orig_name": name}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_upload_gives_one_line(name, app, run_folder):
    content, message = BAD[name]
    event, answer = call(app, upload(app, name, content), run_folder.name)
    assert event == "error"
    text = answer["error"]
    assert message in text
    assert "; " in text  # what to do
    for forbidden in ("\n", "captioner-app-", "<img", "max_pixels"):  # also the server's folder
        assert forbidden not in text


@pytest.mark.parametrize("name", ODD)
def test_an_unusual_photo_is_accepted(name, app, run_folder):
    event, (answer,) = call(app, upload(app, name, ODD[name]), run_folder.name)
    assert event == "complete"
    assert answer["caption"]
    assert "/" not in answer["image"]


def test_a_file_over_the_limit_is_refused(app):
    answer = httpx.post(
        f"{app}gradio_api/upload", files={"files": ("big.png", bytes(26 * 2**20))}, timeout=60
    )
    assert answer.status_code == 413


MARKS = pytest.mark.parametrize("mark", [{"meta": {"_type": "gradio.FileData"}}, {}])


@MARKS
@pytest.mark.parametrize("form", ["{}", "../../../../../..{}", "/tmp/..{}", "file://{}"])
def test_no_other_file_is_read(form, mark, app, run_folder, scenes):
    """The photo would be captioned if it were read."""
    path = form.format(scenes[0].resolve())
    event, answer = call(app, {"path": path} | mark, run_folder.name)
    assert event == "error"
    assert "caption" not in (answer["error"] or "")


def test_no_other_file_is_served(app):
    for path in ("/etc/passwd", "../../../etc/passwd", "pyproject.toml", "app.py"):
        for address in (path, f"/{path}", path.replace("/", "%2F")):
            answer = httpx.get(f"{app}gradio_api/file={address}")
            assert answer.status_code in (403, 404), address


@MARKS
@pytest.mark.parametrize("keys", [["path"], ["path", "url"], ["url"]])
def test_addresses_are_not_fetched(keys, mark, app, run_folder):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.5)
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/photo.png"
        event, _ = call(app, {"path": None} | dict.fromkeys(keys, address) | mark, run_folder.name)
        assert event == "error"
        with pytest.raises(TimeoutError):
            listener.accept()


@pytest.mark.slow
def test_uploads_are_deleted_at_the_end(run_folder, scenes):
    """Also after SIGTERM, as containers send it."""
    with apps.running("--model", str(run_folder), stop=signal.SIGTERM) as url:
        kept = Path(upload(url, "mine.png", scenes[0].read_bytes())["path"])
        assert kept.read_bytes() == scenes[0].read_bytes()
    assert not kept.exists()


def test_a_port_in_use(app, run_folder):
    port = app.rstrip("/").rpartition(":")[2]
    command = ["demo", "--model", str(run_folder), "--port", port]
    done = subprocess.run(
        [sys.executable, "-m", "captioner", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "--port 7861" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_scenes_are_offered_if_the_model_knows_their_words(run_folder, tmp_path):
    scenes = examples(Models([str(run_folder)], "cpu"), [], tmp_path)
    assert [example.path for example in scenes] == sorted(tmp_path.glob("*.png"))
    photos = examples(Models(["luong-dot", str(run_folder)], "cpu"), [], tmp_path / "none")
    assert len(photos) == 6
    assert {photo.path for photo in photos} == set(FOLDER.glob("*.jpg"))
    for photo in photos:
        assert photo.credit
        assert photo.path.stat().st_size < 65_000
        with Image.open(photo.path) as image:
            assert max(image.size) <= 640
    given = examples(Models(["luong-dot"], "cpu"), [Path("a/dog.jpg")], tmp_path)
    assert [(example.title, example.credit) for example in given] == [("dog", "")]


def test_models_are_named_by_their_runs(run_folder):
    several = Models([str(run_folder), str(run_folder / "model")], "cpu")
    assert several.names == [run_folder.name, f"{run_folder.name} (2)", *resources.models()]
    with pytest.raises(UsageError, match="unknown model 'x'"):
        several.get("x")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:{port}", 200),
        ("127.0.0.1:{port}", 200),
        ("127.0.0.1", 200),
        ("[::1]:{port}", 200),
        ("LOCALHOST", 200),
        ("evil.example", 403),
        ("evil.example:{port}", 403),
        ("localhost.evil.example:{port}", 403),
        ("127.0.0.1.evil.example", 403),
        ("127.0.0.1@evil.example", 403),
        ("", 403),
    ],
)
def test_other_hosts_are_refused(host, status, app):
    """Or a page elsewhere could reach the server by DNS rebinding."""
    port = app.rstrip("/").rpartition(":")[2]
    headers = {"host": host.format(port=port), "origin": f"http://{host.format(port=port)}"}
    for method, path in [("GET", ""), ("GET", "config"), ("POST", "gradio_api/call/models")]:
        answer = httpx.request(method, app + path, headers=headers, json={"data": []})
        assert answer.status_code == status, path
        assert status == 200 or "--allowed-host" in answer.text


@pytest.mark.parametrize(
    ("address", "allowed", "status"),
    [
        ("127.0.0.1", [], 403),
        ("127.0.0.1", ["Photos.example"], 200),
        ("0.0.0.0", [], 200),
        ("0.0.0.0", ["other.example"], 403),
    ],
)
def test_allowed_hosts(address, allowed, status):
    app = Starlette(middleware=[Middleware(Gate, hosts=hosts_to_answer(address, allowed))])
    app.add_route("/", lambda _: PlainTextResponse("here"))
    answer = TestClient(app, base_url="http://photos.example:7860").get("/")
    assert answer.status_code == status


ROUTES = (
    *("queue/join", "call/caption", "call/overlay", "run/caption", "api/caption", "run/predict"),
    *("upload", "reset", "cancel", "component_server", "queue/data", "heartbeat/x", "vibe-edit/"),
)
BODIES = (
    *(b"", b"{", b"null", b"[]", b"{}", b'"x"', b"\xff\xfe\x00", b'{"data":null}', b'{"data":{}}'),
    *(b'{"data":[]}', b'{"data":[1,2,3,4]}', b'{"data":[{"path":5},"x",3,1]}', b'{"data":[NaN]}'),
    *(b'{"data":[],"fn_index":99999}', b'{"data":[],"fn_index":-1}', b'{"data":[],"fn_index":"x"}'),
    *(b'{"data":[1],"fn_index":1,"session_hash":[]}', b"[" * 5000 + b"]" * 5000),
    *(b'{"event_id":5,"fn_index":{},"session_hash":1}', b'{"data":[],"fn_index":3,"event_data":1}'),
)
KINDS = ("application/json", "text/plain", "multipart/form-data; boundary=x", "")


def test_malformed_bodies_are_never_a_server_error(app):
    answers = {}
    with httpx.Client(base_url=f"{app}gradio_api/", timeout=30) as client:
        for route, body, kind in itertools.product(ROUTES, BODIES, KINDS):
            headers = {"content-type": kind} if kind else {}
            answer = client.post(route, content=body, headers=headers)
            answers[route, body, kind] = answer.status_code
    assert [request for request, status in answers.items() if status >= 500] == []
    assert httpx.get(app).status_code == 200


@pytest.mark.slow
@pytest.mark.alone
def test_eighty_uploads_at_once(app, scenes, run_folder):
    """All are answered, or refused in words; memory does not grow with each such crowd."""
    photo = io.BytesIO()
    Image.open(scenes[0]).resize((2000, 1500)).save(photo, "JPEG")
    limits = httpx.Limits(max_connections=200)

    def visit(client, number):
        began = time.perf_counter()
        file = {"files": (f"{number}.jpg", photo.getvalue())}
        path = client.post("gradio_api/upload", files=file).json()[0]
        data = [{"path": path, "meta": {"_type": "gradio.FileData"}}, run_folder.name, 3, 1.0]
        event = client.post("gradio_api/call/caption", json={"data": data}).json()["event_id"]
        lines = client.get(f"gradio_api/call/caption/{event}").text.strip().split("\n")
        return lines[-2], lines[-1], time.perf_counter() - began

    def crowd():
        with (
            httpx.Client(base_url=app, timeout=300, limits=limits) as client,
            ThreadPoolExecutor(80) as pool,
        ):
            return list(pool.map(lambda number: visit(client, number), range(80)))

    crowd()
    before = resident_megabytes(app)
    answers = crowd()
    grown = resident_megabytes(app) - before
    waits = [wait for *_, wait in answers]
    print(
        f"p50 {np.quantile(waits, 0.5):.1f} s, p95 {np.quantile(waits, 0.95):.1f} s, {grown:+.0f} MB"
    )
    for event, data, _ in answers:
        assert event == "event: complete" or "full" in data, data
    assert sum(event == "event: complete" for event, *_ in answers) >= 40
    assert grown < 100


def resident_megabytes(app):
    """The memory of the process that serves this address."""
    port = app.rstrip("/").rpartition(":")[2].encode()
    for process in Path("/proc").glob("[0-9]*"):
        if port in (process / "cmdline").read_bytes().split(b"\0"):
            return int(re.search(r"VmRSS:\s+(\d+)", (process / "status").read_text())[1]) / 1e3
    raise AssertionError(f"no process serves {app}")
