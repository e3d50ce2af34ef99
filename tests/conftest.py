"""What several test files share."""

import copy
import os
import shutil
from collections.abc import Callable
from pathlib import Path

if "PYTEST_XDIST_WORKER" in os.environ:  # processes beside each other: a core each
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from filelock import FileLock

import apps
import libraries
import runs
from captioner import caption, checkpoint, load
from captioner.cli import main
from captioner.models.captioner import Captioner

SHARED = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real photographs; tests that need it are skipped, and say so, without it."""
    if not (SHARED / "README.md").is_file():
        pytest.skip(f"REAL PHOTOS MISSING: expected flickr8k/ and coco/ in {SHARED}")
    return SHARED


@pytest.fixture(scope="session")
def common(tmp_path_factory) -> Path:
    """A folder that is the same for all processes of these tests."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "common"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def shapes_cache(common):
    """Where the small runs keep their scenes and annotations."""
    folder = common / "cache"
    folder.mkdir(exist_ok=True)
    return folder


def once(folder: Path, make: Callable[[], None]) -> Path:
    """A folder that the first process to ask for it makes; the others wait. Nobody writes into it."""
    done = folder.with_suffix(".done")
    with FileLock(folder.with_suffix(".lock")):
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of one that failed
            make()
            done.touch()
    return folder


@pytest.fixture(scope="session", autouse=True)
def without_meteor():
    """Small runs end with scores of no program: METEOR reads its tables for seconds, every time."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("captioner.training.result.CaptionScorer", runs.scorer)
        yield


@pytest.fixture(scope="session")
def run_folder(common, shapes_cache):
    """A finished run on a few scenes, long enough to say different things of different pictures.

    A model that says the same of all would make every comparison of captions worthless.
    """
    folder = common / "runs" / "small"
    folder.parent.mkdir(exist_ok=True)

    def make():
        assert main(runs.arguments(folder, shapes_cache, epochs=30)) == 0
        scenes = runs.scenes(shapes_cache) / "val"
        found = load(folder).caption(sorted(scenes.glob("*.png")))
        assert len({caption.text for caption in found}) > len(found) / 2

    return once(folder, make)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """An untrained model folder, for what does not depend on what is said."""
    return runs.tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def in_process(monkeypatch):
    """``captioner caption`` on a library without processes of its own, for whoever calls it often."""

    def engine(options, sources):
        model = {"model": options.model, "device": options.device, "sources": sources}
        return libraries.InProcess({**model, **caption._search(options)})

    monkeypatch.setattr(caption, "_engine", engine)


@pytest.fixture(scope="session")
def hard_folder(run_folder, tmp_path_factory):
    """The same model, its attention hard: it looks at one cell for each word."""
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
def app(run_folder, hard_folder):
    """The address of the running app, with a model of soft and one of hard attention."""
    models = ["--model", str(run_folder), "--model", str(hard_folder)]
    with apps.running(*models, "--device=cpu") as url:
        yield url


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium: the system's, or Playwright's own. Tests are skipped, and say so, without."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        pytest.skip("PLAYWRIGHT MISSING: pip install -e '.[dev]'")
    system = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    with sync_playwright() as playwright:
        try:
            # A container has no user namespaces for the sandbox; the pages opened here are our own.
            launched = playwright.chromium.launch(
                executable_path=system, args=["--no-sandbox"], timeout=120_000
            )
        except Error as error:
            pytest.skip(f"BROWSER MISSING: apt install chromium ({str(error).splitlines()[0]})")
        yield launched
        launched.close()
