"""The configurations and trained models that come with the package."""

from pathlib import Path

DEFAULT_MODEL = "luong-dot"
_HERE = Path(__file__).parent


def configs_folder() -> Path:
    """Return the folder of YAML files: inside an installed package, or beside it in a checkout."""
    inside = _HERE / "configs"
    return inside if inside.is_dir() else _HERE.parent / "configs"


def shipped_configs() -> dict[str, Path]:
    """Return the YAML files by the names that ``captioner configs`` prints: ``configs/…yaml``."""
    folder = configs_folder()
    files = sorted(folder.rglob("*.yaml"))
    return {str(Path("configs") / file.relative_to(folder)): file for file in files}


def bundled_models() -> dict[str, Path]:
    """Return the folders of the bundled models by name, the default first."""
    folders = {file.parent.name: file.parent for file in _HERE.glob("pretrained/*/config.json")}
    return dict(sorted(folders.items(), key=lambda model: (model[0] != DEFAULT_MODEL, model)))


def find_model(model: str | Path | None) -> Path:
    """Return the folder of a bundled model, or the path itself; None is the bundled default."""
    return bundled_models().get(str(model or DEFAULT_MODEL), Path(model or DEFAULT_MODEL))


def encoder_weights(name: str) -> dict[str, Path]:
    """Return the bundled weights of an encoder, by the name for its option ``weights``."""
    files = _HERE.glob(f"pretrained/encoders/{name}-*.safetensors")
    return {file.stem.removeprefix(f"{name}-").upper(): file for file in sorted(files)}
