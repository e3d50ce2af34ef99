"""Files that come with the package: configurations, trained models, and an encoder they share."""

from pathlib import Path

DEFAULT_MODEL = "show-attend-tell-soft"
_HERE = Path(__file__).parent


def configs_folder() -> Path:
    """The YAML files: inside an installed package, or beside it in a checkout."""
    inside = _HERE / "configs"
    return inside if inside.is_dir() else _HERE.parent / "configs"


def models() -> dict[str, Path]:
    """The folders of the bundled models, by name, the one that is taken by default first."""
    found = {file.parent.name: file.parent for file in _HERE.glob("pretrained/*/config.json")}
    return dict(sorted(found.items(), key=lambda model: (model[0] != DEFAULT_MODEL, model)))


def encoder_weights(name: str) -> dict[str, Path]:
    """Weights that the package brings for an encoder, by what its ``weights`` calls them.

    Several bundled models see through one fine-tuned encoder; it is stored once.
    """
    files = _HERE.glob(f"pretrained/encoders/{name}-*.safetensors")
    return {file.stem.removeprefix(f"{name}-").upper(): file for file in sorted(files)}
