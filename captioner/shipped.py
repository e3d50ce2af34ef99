"""Files that come with the package: configurations and trained models."""

from pathlib import Path

_HERE = Path(__file__).parent


def configs_folder() -> Path:
    """The YAML files: inside an installed package, or beside it in a checkout."""
    inside = _HERE / "configs"
    return inside if inside.is_dir() else _HERE.parent / "configs"


def models() -> dict[str, Path]:
    """The folders of the bundled models, by name."""
    return {
        file.parent.name: file.parent for file in sorted(_HERE.glob("pretrained/*/config.json"))
    }
