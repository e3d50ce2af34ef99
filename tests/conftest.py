"""Fixtures that several test files use."""

import copy
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

if "PYTEST_XDIST_WORKER" in os.environ:  # parallel processes: one core each
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from filelock import FileLock

import apps
import runs
from captioner import load
from captioner.cli import caption_outputs
from captioner.cli.main import main
from captioner.models.captioner import Captioner
from captioner.store import checkpoint
from data_modules import cache_dir, photos, shapes  # noqa: F401 - fixtures

SHARED = Path(__file__).parents[2] / "shared" / "data"
BEGAN = time.monotonic()


def pytest_addoption(parser):
    parser.addoption(
        "--slow-minutes",
        type=float,
        default=float("inf"),
        help="skip slow tests that have not started after this many minutes, for slow machines",
    )


def pytest_runtest_setup(item):
    minutes = item.config.getoption("--slow-minutes")
    if item.get_closest_marker("slow") and time.monotonic() - BEGAN > 60 * minutes:
        pytest.skip(f"OUT OF TIME: slow tests do not start after {minutes:g} minutes")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real photos; tests that need it are skipped without it."""
    if not (SHARED / "README.md").is_file():
        pytest.skip(f"REAL PHOTOS MISSING: expected flickr8k/ and coco/ in {SHARED}")
    return SHARED


@pytest.fixture(scope="session")
def common(tmp_path_factory) -> Path:
    """A folder that all test processes share."""
    base = tmp_path_factory.getbasetemp()  # of this process
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "common"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def shapes_cache(common):
    """The cache of scenes and annotations of the small runs."""
    folder = common / "cache"
    folder.mkdir(exist_ok=True)
    return folder


def once(folder: Path, make: Callable[[], None]) -> Path:
    """Return a folder that the first test process makes while the others wait."""
    done = folder.with_suffix(".done")
    with FileLock(folder.with_suffix(".lock")):
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)  # left by a failure
            make()
            done.touch()
    return folder


@pytest.fixture(scope="session", autouse=True)
def without_meteor():
    """Score small runs without METEOR, which takes seconds to start."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("captioner.training.results.CaptionScorer", runs.scorer)
        yield


@pytest.fixture(scope="session")
def run_folder(common, shapes_cache):
    """A finished run on a few scenes, long enough that captions differ between images."""
    folder = common / "runs" / "small"
    folder.parent.mkdir(exist_ok=True)

    def make():
        seldom = "--trainer.check_val_every_n_epoch=5"
        assert main(runs.arguments(folder, shapes_cache, seldom, epochs=30)) == 0
        scenes = runs.scenes(shapes_cache) / "val"
        captions = load(folder).caption(sorted(scenes.glob("*.png")))
        assert len({caption.text for caption in captions}) > len(captions) / 2

    return once(folder, make)


@pytest.fixture
def refused(capsys):
    """Call ``refused(command, …)`` to run a command that must fail; returns its one-line error."""

    def run(*arguments):
        capsys.readouterr()
        assert main(list(map(str, arguments))) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert line.startswith("captioner: ")
        return line

    return run


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """An untrained model folder, for tests that do not depend on the captions."""
    return runs.tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def with_fast(monkeypatch):
    """Use the fast modules, also where ``CAPTIONER_FAST=0`` runs all tests without them."""
    monkeypatch.setenv("CAPTIONER_FAST", "1")


@pytest.fixture
def in_process(monkeypatch):
    """``captioner caption`` without further processes, for tests that call it often."""

    engine = caption_outputs._engine
    monkeypatch.setattr(caption_outputs, "_engine", lambda *arguments: engine(*arguments[:2], True))


@pytest.fixture(scope="session")
def hard_folder(run_folder, tmp_path_factory):
    """The model of ``run_folder`` with hard attention."""
    stored = checkpoint.load(run_folder)
    tree = copy.deepcopy(stored.captioner.config)
    tree["decoder"]["init_args"]["attention"]["init_args"]["distribution"] = {"class_path": "Hard"}
    hard = Captioner.from_config(tree, stored.captioner.vocabulary)
    hard.encoder.load_pretrained()
    hard.load_state_dict(stored.captioner.state_dict())
    folder = tmp_path_factory.mktemp("runs") / "hard"
    checkpoint.save(hard, folder, "# Hard", stored.decoding)
    return folder


@pytest.fixture(scope="session")
def app_log(tmp_path_factory):
    """The file that receives what the running app writes to standard error."""
    return tmp_path_factory.mktemp("app") / "log"


@pytest.fixture(scope="session")
def app(run_folder, hard_folder, app_log):
    """The address of the running app with two models, of soft and of hard attention."""
    models = ["--model", str(run_folder), "--model", str(hard_folder)]
    with apps.running(*models, "--device=cpu", log=app_log) as url:
        yield url


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium from the system or Playwright; tests are skipped without it."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        pytest.skip("PLAYWRIGHT MISSING: pip install -e '.[dev]'")
    system = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    with sync_playwright() as playwright:
        try:
            # A container has no user namespaces for the sandbox, and the tests open only trusted pages.
            chromium = playwright.chromium.launch(
                executable_path=system, args=["--no-sandbox"], timeout=120_000
            )
        except Error as error:
            pytest.skip(f"BROWSER MISSING: apt install chromium ({str(error).splitlines()[0]})")
        yield chromium
        chromium.close()
