"""The endpoints of the app: results, concurrency, bad uploads and forged requests."""

import io
import json
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
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

import apps
import runs
from apps import resident
from captioner import resources
from captioner.app.example_photos import FOLDER, examples
from captioner.app.served_models import MAX_BEAM, OWN, Models, read, several
from captioner.app.server import hosts_to_answer
from captioner.cli.main import main
from captioner.errors import UsageError
from captioner.overlay import export
from captioner.search.options import Decoding
from captioner.store import checkpoint


@pytest.fixture(scope="module")
def client(app):
    return Client(app, verbose=False)


@pytest.fixture(scope="module")
def scenes(shapes_cache, run_folder):
    return sorted(runs.scenes(shapes_cache).glob("val/*.png"))[:3]


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
    """Also one that is larger than requests may ask for."""
    stored = checkpoint.load(run_folder)
    sizes = {"narrow": 2, "wide": MAX_BEAM + 5}
    for name, size in sizes.items():
        checkpoint.save(stored.captioner, tmp_path / name, "# Another", Decoding(beam_size=size))
    models = Models([str(tmp_path / name) for name in sizes], "cpu")
    narrow, wide = (models.answer(read(scenes[0]), name).captions for name in sizes)
    assert len(narrow) == 2
    assert len(wide) > 5
    scores = [caption.score for caption in wide]
    assert scores == sorted(scores, reverse=True)  # the number that ranks


@pytest.mark.parametrize("way", ["beam", "diverse", "sampled"])
def test_several_captions_are_those_of_the_python_interface(way, client, scenes, run_folder):
    models = Models([str(run_folder)], "cpu")
    options = {
        "beam": {"num_captions": 7},
        "diverse": {"num_captions": 7, "diverse_groups": 7, "diversity": 2},
        "sampled": {"num_captions": 7, "temperature": 1.5, "top_p": 0.9, "seed": 3},
    }[way]
    best = models.get(run_folder.name).caption(scenes[0], **options)
    expected = [best.text, *(caption.text for caption in best.alternatives)]
    settings = {"diversity": 2, "temperature": 1.5, "top_p": 0.9, "seed": 3}
    if way == "sampled":
        settings["length_penalty"] = 2  # ignored
    query = {"photo": handle_file(scenes[0]), "way": way, "count": 7, **settings}
    for _ in range(2):  # the same seed gives the same captions
        records = client.predict(**query, api_name="/captions")
        assert [record["caption"] for record in records] == expected
    own = models.answer(read(scenes[0]), run_folder.name, more=several(way, OWN, 2, 1.5, 0.9, 3))
    assert len(own.captions) == 5


def test_answers_of_simultaneous_requests_are_not_mixed_up(app, scenes, expected):
    clients = [Client(app, verbose=False) for _ in range(4)]
    requests = [(client, scene) for client in clients for scene in scenes]
    with ThreadPoolExecutor(len(requests)) as pool:
        answers = pool.map(lambda request: caption(*request)["caption"], requests)
    assert list(answers) == [expected[scene.name]["caption"] for _, scene in requests]


def test_every_endpoint(client, scenes, run_folder, hard_folder):
    photo = handle_file(scenes[0])
    expected = [run_folder.name, hard_folder.name, *resources.bundled_models()]
    assert client.predict(api_name="/models") == expected
    own = client.predict(photo=photo, api_name="/explain")
    given = client.predict(photo=photo, sentence="A red ring!", api_name="/explain")
    assert [word["word"] for word in given["words"]] == ["a", "red", "ring"]
    assert given["image"] == scenes[0].name
    assert np.shape(given["words"][0]["weights"]) == tuple(given["grid"])
    with Image.open(client.predict(photo=photo, word=1, api_name="/overlay")) as drawn:
        assert list(drawn.size) == own["size"]
    for name in export.names():
        file = Path(client.predict(photo=photo, form=name, api_name="/export"))
        assert file.name == f"{scenes[0].stem}.{name}"
        if name == "json":
            assert json.loads(file.read_text()) == own


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
        "/models", "/caption", "/captions", "/explain", "/redraw", "/overlay", "/export", "/past",
    }  # fmt: skip
    assert not described["unnamed_endpoints"]
    for endpoint in named.values():
        assert endpoint["description"]
        for parameter in endpoint["parameters"]:
            assert parameter["parameter_name"] == "photo" or parameter["parameter_has_default"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"word": 99, "api_name": "/overlay"}, "words are counted from 0"),
        ({"sentence": "?!", "api_name": "/explain"}, "has 1 to 40 words"),
        ({"api_name": "/redraw"}, "no hard attention to sample"),
        ({"model": "/etc/passwd", "api_name": "/caption"}, "not in the list of choices"),
        ({"beam_size": 10_000, "api_name": "/caption"}, "greater than maximum value 20"),
        ({"beam_size": None, "api_name": "/caption"}, "beam_size must be of type .*, got None"),
        ({"photo": None, "api_name": "/caption"}, "no photo given"),
        ({"way": "sampled", "top_p": 0, "api_name": "/captions"}, "top_p must be a number above 0"),
    ],
)
def test_errors_are_one_line(options, message, client, scenes, app_log):
    with pytest.raises(AppError, match=message) as raised:
        client.predict(**{"photo": handle_file(scenes[0]), **options})
    assert "\n" not in str(raised.value)
    assert "Traceback" not in app_log.read_text()


def encode(form, mode="RGB", size=(60, 40)):
    stream = io.BytesIO()
    Image.new(mode, size).save(stream, form)
    return stream.getvalue()


def png_of_size(width, height):
    """A PNG file that declares this size and has hardly any data."""
    content = bytearray(encode("PNG"))
    struct.pack_into(">II", content, 16, width, height)
    struct.pack_into(">I", content, 29, zlib.crc32(content[12:29]))
    return bytes(content)


BAD = {
    "truncated.jpg": (encode("JPEG", size=(200, 200))[:300], "cannot be decoded"),
    "bomb.png": (png_of_size(30_000, 30_000), "too large"),
    "drawing.png": (b'<svg xmlns="http://www.w3.org/2000/svg"></svg>', "is not an image"),
    "<img src=x onerror=alert(1)>.jpg": (b"\x01\x02\x03", "is not an image"),
    "..%2F..%2Fetc%2Fpasswd.jpg": (b"", "is not an image"),
    "лес 森 \u202egpj.jpg": (b"\x01\x02\x03", "is not an image"),
}
ODD = {
    "inks.jpg": encode("JPEG", "CMYK"),
    "deep.tif": encode("TIFF", "I;16"),
    "../../no-suffix": encode("PNG", "L"),
}


def call(app, photo, model):
    """Call /caption without a client; return the event and its data."""
    url = f"{app}gradio_api/call/caption"
    posted = httpx.post(url, json={"data": [photo, model, 3, 1.0]}, timeout=300)
    answer = httpx.get(f"{url}/{posted.json()['event_id']}", timeout=300)
    event, data = answer.text.strip().split("\n")[-2:]
    return event.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def upload(app, name, content):
    """Upload as a browser does, with any name."""
    answer = httpx.post(f"{app}gradio_api/upload", files={"files": (name, content)}, timeout=300)
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
        event, data = call(
            app, {"path": None} | dict.fromkeys(keys, address) | mark, run_folder.name
        )
        assert event == "error"
        assert "path" not in keys or "download the photo and upload it" in data["error"]
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
    (line,) = done.stderr.splitlines()
    assert line.endswith(f"cannot listen on 127.0.0.1:{port}; give another --port or --host")


def test_scenes_are_offered_if_the_model_knows_their_words(run_folder, tmp_path, capsys):
    scenes = examples(Models([str(run_folder)], "cpu"), [], tmp_path)
    assert [example.path for example in scenes] == sorted(tmp_path.glob("*.png"))
    photos = examples(Models(["luong-dot", str(run_folder)], "cpu"), [], tmp_path / "none")
    assert {photo.path for photo in photos} == set(FOLDER.glob("*.jpg"))
    assert all(photo.credit for photo in photos)
    files = [scenes[0].path, Path("a/dog.jpg")]
    given = examples(Models(["luong-dot"], "cpu"), files, tmp_path)
    assert [(example.title, example.credit) for example in given] == [("1", "")]
    assert "captioner: left out: a/dog.jpg does not exist" in capsys.readouterr().err


def test_models_are_named_by_their_runs(run_folder):
    """And numbered if two have the same name."""
    several = Models([str(run_folder), str(run_folder / "model")], "cpu")
    assert several.names == [run_folder.name, f"{run_folder.name} (2)", *resources.bundled_models()]
    with pytest.raises(UsageError, match="unknown model 'x'"):
        several.get("x")


def test_other_hosts_are_refused(app):
    """Or a page elsewhere could reach the server by DNS rebinding."""
    headers = {"host": "evil.example", "origin": "http://evil.example"}
    for method, path in [("GET", ""), ("GET", "config"), ("POST", "gradio_api/call/models")]:
        answer = httpx.request(method, app + path, headers=headers, json={"data": []})
        assert answer.status_code == 400, path


@pytest.mark.parametrize(
    ("address", "allowed", "answered", "refused"),
    [
        ("127.0.0.1", [], "localhost:1 127.0.0.1:1 127.0.0.1 [::1]:1 LOCALHOST", "a.example:1"),
        ("localhost", [], "localhost", "localhost.a.example:1 127.0.0.1.a.example 127.0.0.1@a"),
        ("127.0.0.1", ["Photos.example"], "photos.example:1 localhost", "a.example"),
        ("0.0.0.0", [], "photos.example a.example:1", ""),
        ("0.0.0.0", ["photos.example"], "photos.example localhost", "other.example"),
    ],
)
def test_allowed_hosts(address, allowed, answered, refused):
    app = Starlette(
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=hosts_to_answer(address, allowed))
        ]
    )
    app.add_route("/", lambda _: PlainTextResponse("here"))
    client = TestClient(app)
    for names, status in ((answered, 200), (refused, 400)):
        for host in names.split():
            assert client.get("/", headers={"host": host}).status_code == status, host


@pytest.mark.parametrize("body", [b"", b"{", b'{"data":[5,[],"x",{}]}', b'{"data":[]}'])
def test_the_app_survives_malformed_requests(body, app, scenes, run_folder):
    for route in ("queue/join", "call/caption", "run/caption", "upload"):
        answer = httpx.post(f"{app}gradio_api/{route}", content=body, timeout=30)
        assert "caption" not in answer.text.partition('"data"')[2]
    assert httpx.get(app).status_code == 200


@pytest.mark.slow
@pytest.mark.alone
def test_eighty_uploads_at_once(app, scenes, run_folder):
    """All are answered, or refused in words; memory does not grow with each such crowd."""
    photo = io.BytesIO()
    Image.open(scenes[0]).resize((2000, 1500)).save(photo, "JPEG")

    def visit(number):
        began = time.perf_counter()
        event, data = call(app, upload(app, f"{number}.jpg", photo.getvalue()), run_folder.name)
        assert event == "complete" or "full" in data["error"], data
        return event == "complete", time.perf_counter() - began

    def crowd():
        with ThreadPoolExecutor(80) as pool:
            return zip(*pool.map(visit, range(80)), strict=True)

    crowd()
    before = resident(process_of(app))
    answered, waits = crowd()
    grown = (resident(process_of(app)) - before) / 1e6
    half, most = np.quantile(waits, (0.5, 0.95))
    print(f"p50 {half:.1f} s, p95 {most:.1f} s, {grown:+.0f} MB")
    assert sum(answered) >= 40
    assert grown < 100


def process_of(app):
    """The number of the process that serves this address."""
    port = app.rstrip("/").rpartition(":")[2].encode()
    for process in Path("/proc").glob("[0-9]*"):
        if port in (process / "cmdline").read_bytes().split(b"\0"):
            return int(process.name)
    raise AssertionError(f"no process serves {app}")
