"""The commands of LightningCLI: their short help, the run folder, and the choice of the checkpoint."""

import re
import sys
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

from captioner.cli.parser import Parser
from captioner.errors import UsageError, did_you_mean
from captioner.resources import shipped_configs

COMMANDS = {
    "fit": "Train a captioner, score its best checkpoint on the development split, and export it.",
    "validate": "Score a checkpoint on the development split as during training.",
    "test": "Generate and score captions for data.test_split.",
    "predict": "Generate captions for data.test_split as COCO results JSON.",
    "prepare": "Fill the annotation cache before training, or check it.",
}
EXAMPLES = {
    "fit": (
        "--config configs/own.yaml --data.root DIR    # your own photos, from a bundled model",
        "--config configs/shapes.yaml    # a few minutes, no data needed",
        "--config configs/flickr8k.yaml --data.root DIR",
        "--config configs/flickr8k.yaml --data.root DIR --ckpt_path last    # resume",
    ),
    "prepare": (
        "--config configs/coco.yaml --data.root DIR",
        "--config configs/coco.yaml --data.root DIR --verify true",
    ),
    "validate": ("", "--ckpt_path last"),
    **dict.fromkeys(("test", "predict"), ("", "--data.test_split val")),
}
# The options in the short help: name, placeholder, help, and the commands that show it.
_SHORT_HELP = (
    ("config", "FILE", "a YAML file; repeat it to combine files. Options replace its values", ""),
    ("data.name", "NAME", "kind of data set: {}, shapes", ""),
    ("data.root", "DIR", "folder of the data set, as downloaded", ""),
    ("data.batch_size", "N", "images per batch (default: 32)", "fit"),
    ("data.cache_dir", "DIR", "the cache (default: in the user's cache folder)", "prepare"),
    ("data.test_split", "SPLIT", "split to caption: train, val or test", "test predict"),
    ("model", "FILE", "another design, such as configs/model/transformer.yaml", "fit"),
    ("model.learning_rate", "RATE", "peak learning rate", "fit"),
    ("trainer.default_root_dir", "DIR", "the run folder (default: runs/NAME for NAME.yaml)", ""),
    ("trainer.precision", "P", "32-true, bf16-mixed or 16-mixed", ""),
    ("trainer.max_epochs", "N", "number of epochs (default: 12)", "fit"),
    ("trainer.devices", "N", "number of GPUs or processes (default: 1)", "fit"),
    ("seed_everything", "SEED", "random seed (default: 1)", "fit"),
    ("ckpt_path", "FILE", "last: resume the run in its folder; auto: resume or start it", "fit"),
    ("ckpt_path", "FILE", "best, last or a file (default: best)", "validate test predict"),
    ("verify", "true", "also check the whole cache and repair it", "prepare"),
    ("print_config", "[=FLAGS]", "print the whole configuration and exit", "fit"),
    ("help-all", "", "show all options", ""),
)
BEST, LAST, PREEMPTED = "checkpoints/best.ckpt", "checkpoints/last.ckpt", "hpc_ckpt_*.ckpt"


def run(arguments: list[str]) -> int:
    """Run a training command, or show its help."""
    command, *rest = map(_shipped, arguments)
    if {"-h", "--help"} & {*rest}:
        _parser(command).print_help(sys.stdout)
        return 0

    from captioner import distributed
    from captioner.training import run

    if "--help-all" in rest:
        with redirect_stdout(StringIO()) as text, suppress(SystemExit):
            run.main([command, "--help"])
        print(re.sub(r",\s+default:\s+null\)", ")", text.getvalue()))
        return 0
    chosen: list[Path] = []

    def choose(options: Any) -> None:
        chosen.append(choose_run(command, options))

    try:
        run.main([command, *rest], choose)
    except KeyboardInterrupt:
        if command == "fit" and chosen and (chosen[0] / LAST).is_file():
            hint = f": resume the run in '{chosen[0]}' with --ckpt_path last"
            raise KeyboardInterrupt(hint) from None
        raise
    distributed.leave()
    return 0


def _parser(command: str) -> Parser:
    """Return the parser that prints the short help; LightningCLI parses the options."""
    from captioner.data.readers import READERS

    saved = "" if command in ("fit", "prepare") else "--config runs/flickr8k/config.yaml "
    parser = Parser(
        prog=f"captioner {command}",
        usage=f"captioner {command} --config FILE [OPTION ...]",
        description=COMMANDS[command],
        examples=[f"captioner {command} {saved}{example}" for example in EXAMPLES[command]],
    )
    for name, metavar, text, commands in _SHORT_HELP:
        if not commands or command in commands.split():
            text = text.format(", ".join(READERS)) if name == "data.name" else text
            parser.add_argument(f"--{name}", metavar=metavar, help=text)
    return parser


def _shipped(argument: str) -> str:
    """Replace ``configs/…yaml`` that does not exist here by the file shipped with the package."""
    option, equals, value = argument.rpartition("=")
    shipped = shipped_configs().get(str(Path(value)))
    return f"{option}{equals}{shipped}" if shipped and not Path(value).exists() else argument


def choose_run(command: str, options: Any) -> Path:
    """Choose the run folder and the checkpoint of a command, and put them into its parsed options.

    Returns the run folder: by default ``runs/NAME`` for the last configuration file ``NAME.yaml``.

    Raises:
        UsageError: no such checkpoint; or the folder holds a run, or its ``config.yaml`` is an input.
    """
    files = list(map(str, options.config or ()))
    default = Path("runs") / (Path(files[-1]).stem if files else "run")
    root = Path(options.trainer.default_root_dir or default)
    options.trainer.default_root_dir = str(root)
    if command == "prepare":
        return root
    checkpoint = _checkpoint(command, options.ckpt_path, root)
    saved = root / "config.yaml"
    resumed = checkpoint is not None and root in checkpoint.parents
    if (
        command == "fit"
        and not resumed
        and any(map(saved.samefile, files if saved.exists() else ()))
    ):
        raise UsageError(
            f"'{saved}' is an input, and the run would replace it: choose another folder with "
            "--trainer.default_root_dir DIR"
        )
    options.ckpt_path = None if checkpoint is None else str(checkpoint)
    return root


def _checkpoint(command: str, option: Any, root: Path) -> Path | None:
    """Return the checkpoint to load; ``best`` and ``last`` are files of the run folder.

    ``fit`` starts a new run by default, and refuses a folder that has one; ``auto`` resumes the run
    of the folder or starts one. The default of the other commands is ``best``.
    """
    if command == "fit" and option in (None, "auto", "last"):
        saved = [*root.glob(LAST), *root.glob(PREEMPTED)]
        if option is None and saved:
            raise UsageError(
                f"'{root}' already holds a run: resume it with --ckpt_path last, or choose another "
                "folder with --trainer.default_root_dir DIR"
            )
        if saved or option != "last":
            return max(saved, key=lambda file: file.stat().st_mtime, default=None)
    named = {None: BEST, "best": BEST, "last": LAST}
    file = root / named[option] if option in named else Path(str(option))
    if not file.is_file():
        near = "" if option in named else did_you_mean(str(option), ("auto", "best", "last"))
        raise UsageError(
            f"no checkpoint '{file}'{near}: name the run folder with --trainer.default_root_dir DIR, or "
            "a file with --ckpt_path FILE"
        )
    return file
