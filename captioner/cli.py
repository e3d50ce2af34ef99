"""The command line. Nothing heavy is imported before it is known what to do."""

import argparse
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from captioner import __version__, caption, compare, data_check, explain, ground
from captioner.errors import CaptionerError, UsageError
from captioner.options import positive
from captioner.shipped import configs_folder
from captioner.shipped import models as bundled_models

LIGHTNING = {
    "fit": "train a captioner, score the best checkpoint on the development split, export it",
    "validate": "run the development loop of a checkpoint",
    "test": "generate and score captions for data.test_split",
    "predict": "generate captions for data.test_split, as COCO results JSON",
    "prepare": "fill the annotation cache ahead of training, or check it",
}


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; the exit status: 0 done, 1 some inputs failed, 2 the call is wrong."""
    arguments = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        if arguments and arguments[0] in LIGHTNING:
            return _lightning(arguments)
        options = _parser().parse_args(arguments)
        command: Callable[[argparse.Namespace], int] = options.command
        return command(options)
    except CaptionerError as error:
        if debug:
            raise
        print(f"captioner: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of our output has had enough, as `head` does
        sys.stderr.close()
        return 1
    except OSError as error:  # a full disk, a folder that may not be written
        if debug:
            raise
        print(f"captioner: {error}; check the path, its permissions and the disk", file=sys.stderr)
        _give_up_output()
        return 2
    except KeyboardInterrupt:
        print("captioner: interrupted", file=sys.stderr)
        return 130


def _give_up_output() -> None:
    """What standard output could not take is not tried again when Python ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, like all others."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def _parser() -> argparse.ArgumentParser:
    formatter = argparse.ArgumentDefaultsHelpFormatter
    parser = _Parser(
        prog="captioner",
        description="Writes a sentence about a photo and shows where it looked for each word.",
        epilog="--debug with any command shows the traceback of an error.",
    )
    parser.add_argument("--version", action="version", version=f"captioner {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, text in LIGHTNING.items():
        # Only listed here; LightningCLI parses them.
        commands.add_parser(name, help=text, add_help=False)

    def add(
        name: str, command: Callable[[argparse.Namespace], int], text: str
    ) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text, formatter_class=formatter)
        added.set_defaults(command=command)
        return added

    captioning = add("caption", _caption, "write captions for files, folders or globs")
    _add_pictures(captioning)
    caption.add_arguments(captioning)

    explaining = add("explain", _explain, "write files that show where it looked for each word")
    _add_pictures(explaining)
    explain.add_arguments(explaining)

    evaluate = add("evaluate", _evaluate, "score captions against references")
    evaluate.add_argument("results", help="COCO results JSON, or the JSONL of captioner caption")
    evaluate.add_argument("--references", required=True, help="COCO captions JSON")
    evaluate.add_argument(
        "--java",
        choices=("auto", "yes", "no"),
        default="auto",
        help="use Java for the PTB tokenizer and METEOR",
    )
    evaluate.add_argument(
        "--output", metavar="FILE", help="where to write; standard output if not given"
    )

    grounding = add("ground", _ground, "score where it looked against object masks")
    _add_model(grounding)
    _add_search(grounding, 16)
    ground.add_arguments(grounding)
    grounding.add_argument("--output", metavar="FILE", help="where to write the report as JSON")

    data_sets = add("data", _data_check, "look at a data set before training on it")
    data_commands = data_sets.add_subparsers(title="commands", metavar="COMMAND", required=True)
    text = "list all that is wrong with a data set, and what is in it"
    checking = data_commands.add_parser(
        "check", help=text, description=text, formatter_class=formatter
    )
    data_check.add_arguments(checking)
    checking.add_argument(
        "--output", metavar="FILE", help="where to write; standard output if not given"
    )

    comparing = add("compare", compare.run, "put runs beside each other: one table, and plots")
    compare.add_arguments(comparing)

    export = add("export", _export, "write a model folder from a checkpoint or a run")
    export.add_argument("folder", help="the folder to write")
    export.add_argument(
        "--model", required=True, help="a .ckpt, a run folder, a model folder or a bundled name"
    )
    export.add_argument(
        "--half", action="store_true", help="store it in half precision, in half the space"
    )

    models = add("models", _models, "list the models that can be named with --model")
    models.add_argument("--runs", default="runs", help="folder of training runs to look through")

    demo = add("demo", _demo, "open the app: a page on which to look at photos with a model")
    demo.add_argument(
        "--model",
        action="append",
        default=argparse.SUPPRESS,
        help="a bundled name, a model folder, a .ckpt or a run folder; may be given several times "
        "(default: the bundled models)",
    )
    demo.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps")
    demo.add_argument("--host", default="127.0.0.1", help="0.0.0.0 for everybody in the network")
    demo.add_argument("--port", type=positive, default=7860, help="where it listens")
    demo.add_argument(
        "--examples",
        nargs="+",
        default=argparse.SUPPRESS,
        metavar="INPUT",
        help="pictures, folders or globs to offer (default: generated scenes, for a model that was "
        "trained on them)",
    )

    configs = add("configs", _configs, "list the shipped configuration files, or copy them out")
    configs.add_argument("folder", nargs="?", help="copy them into this folder")
    return parser


def _add_pictures(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help="picture, folder or glob")
    _add_model(parser)
    _add_search(parser, 64)


def _add_search(parser: argparse.ArgumentParser, batch_size: int) -> None:
    parser.add_argument(
        "--beam-size",
        type=positive,
        default=argparse.SUPPRESS,
        help="1 is greedy search (default: as the model was scored, mostly 5)",
    )
    parser.add_argument(
        "--batch-size", type=positive, default=batch_size, help="pictures computed together"
    )


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        help="a bundled name, a model folder, a .ckpt or a run folder; the bundled default if not given",
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps")


def _lightning(arguments: list[str]) -> int:
    from captioner import processes
    from captioner.training import run

    run.main(arguments)
    processes.leave()  # this one has no more to do
    return 0


def _caption(options: argparse.Namespace) -> int:
    return caption.run(options, _output)


def _explain(options: argparse.Namespace) -> int:
    return explain.run(options)


def _evaluate(options: argparse.Namespace) -> int:
    from captioner.evaluation.captions import evaluate_files

    output = _output(options.output)
    java = {"auto": None, "yes": True, "no": False}[options.java]
    scores = evaluate_files(options.results, options.references, java=java)
    with output as stream:
        json.dump(scores.as_dict(), stream, indent=2)
        stream.write("\n")
    return 0


def _ground(options: argparse.Namespace) -> int:
    return ground.run(options, _output(options.output) if options.output else None)


def _data_check(options: argparse.Namespace) -> int:
    return data_check.run(options, _output(options.output))


def _export(options: argparse.Namespace) -> int:
    from captioner import checkpoint
    from captioner.predictor import find_model

    source = find_model(options.model)
    stored = checkpoint.load(source)
    if source.parts[-2:] == checkpoint.BEST.parts:
        source = source.parents[1]  # a run's best checkpoint is what its card is about
    cards = [source / checkpoint.CARD, source / checkpoint.MODEL / checkpoint.CARD]
    card = next((file.read_text("utf-8") for file in cards if file.is_file()), None)
    checkpoint.save(
        stored.captioner,
        options.folder,
        card or f"# A captioner\n\nExported from {source.name}; not scored yet.\n",
        stored.decoding,
        stored.supervision,
        options.half,
    )
    print(f"model written to {options.folder}")
    return 0


def _models(options: argparse.Namespace) -> int:
    from captioner.checkpoint import BEST, CONFIG, MODEL

    found = [(name, "bundled") for name in bundled_models()]
    for run in sorted(Path(options.runs).glob("*/")):
        if (run / MODEL / CONFIG).is_file() or (run / BEST).is_file():
            found.append((str(run), "run"))
    for name, kind in found:
        print(f"{name}\t{kind}")
    return 0


def _demo(options: argparse.Namespace) -> int:
    from captioner.paths import find
    from captioner.ui import run
    from captioner.ui_models import Models

    examples = find(options.examples) if "examples" in options else []
    run(
        Models(vars(options).get("model", []), options.device), options.host, options.port, examples
    )
    return 0


def _configs(options: argparse.Namespace) -> int:
    import shutil

    source = configs_folder()
    files = sorted(file.relative_to(source) for file in source.rglob("*.yaml"))
    if options.folder is None:
        for file in files:
            print(Path("configs") / file)
        return 0
    target = Path(options.folder)
    if target.exists() and not target.is_dir():
        raise UsageError(f"'{target}' is a file; give the folder to copy into")
    there = [str(target / file) for file in files if (target / file).exists()]
    if there:
        raise UsageError(f"'{there[0]}' exists already; give an empty or a new folder")
    for file in files:
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / file, target / file)
    print(f"{len(files)} files copied to {target}")
    return 0


def _output(file: str | None) -> Any:
    """Standard output, or a file that appears whole or not at all."""
    from contextlib import nullcontext

    from captioner.files import whole

    if file is None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        return nullcontext(sys.stdout)
    target = Path(file)
    if not target.parent.is_dir():
        raise UsageError(f"cannot write '{file}': the folder '{target.parent}' does not exist")
    if target.is_dir():
        raise UsageError(f"cannot write '{file}': it is a folder; give the name of a file")

    return whole(target)


if __name__ == "__main__":
    sys.exit(main())
