"""The entry point of the command line: runs a command and reports errors in one line.

Each command is a module with ``add_arguments(parser)`` and ``run(options)``. Its docstring is its help,
a summary and examples; ``ADVANCED`` names the options that only ``--help-all`` shows. Only the module
of the given command is imported, and none imports anything heavy before ``add_arguments``.
"""

import argparse
import io
import os
import sys
from contextlib import suppress
from importlib import import_module
from types import ModuleType

from captioner import __version__
from captioner.cli import training
from captioner.cli.parser import Parser
from captioner.errors import CaptionerError, UsageError, os_error

COMMANDS = {
    "caption": "caption_photos",
    "explain": "explain",
    "evaluate": "evaluate",
    "ground": "ground",
    "compare": "compare",
    "calibrate": "calibrate",
    "export": "export_model",
    "models": "list_models",
    "demo": "demo",
    "configs": "copy_configs",
    "data check": "data_check",
}
"""The modules of the commands in ``captioner.cli``."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The exit status: 0 if everything was done, 1 if some inputs failed, 2 if the call is wrong.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for file names that are not UTF-8
    try:
        return _run(arguments)
    except CaptionerError as error:
        if debug:
            raise
        print(f"captioner: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader closed the output, as `head` does
        sys.stderr.close()
        return 1
    except OSError as error:  # for example a full disk or a read-only folder
        if debug:
            raise
        advice = "check the path, its permissions and the disk"
        print(f"captioner: {os_error(error)}; {advice}", file=sys.stderr)
        # Python flushes standard output again at exit, which would print a traceback.
        with suppress(OSError):
            sys.stdout.flush()
            return 2
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except KeyboardInterrupt as error:
        print(f"captioner: interrupted{error}", file=sys.stderr)
        return 130


def module(command: str) -> ModuleType:
    """Return the module of a command."""
    return import_module(f"captioner.cli.{COMMANDS[command]}")


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse the arguments of one of ``COMMANDS``.

    Raises:
        UsageError: an unknown command or option, or a value that an option cannot have.
    """
    words = [argument for argument in arguments if not argument.startswith("-")]
    chosen = next((name for name in COMMANDS if words[: len(name.split())] == name.split()), None)
    options = _parser(chosen).parse_args(arguments)
    for name, value in vars(options).items():
        if "" in (value if isinstance(value, list) else [value]):
            raise UsageError(f"an argument is empty ({name}): is a shell variable unset?")
    return options


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    if arguments in ([], ["data"]):
        arguments = [*arguments, "--help"]
    if arguments[0] in training.COMMANDS:
        return training.run(arguments)
    options = parse(arguments)
    status: int = module(options.command).run(options)
    return status


def _parser(chosen: str | None) -> Parser:
    """Return the parser of the chosen command; None gives the list of all commands and their help."""
    parser = Parser(
        prog="captioner",
        description="Caption photos, and show where the model looked for each word.",
        examples=(
            "captioner caption photo.jpg",
            "captioner explain photo.jpg --output attention",
            "captioner caption --help    # the options of a command, with examples",
        ),
    )
    parser.add_argument("--version", action="version", version=f"captioner {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, text in training.COMMANDS.items():
        commands.add_parser(name, help=text)
    text = "Inspect a data set before training on it."
    data = commands.add_parser("data", help=text, description=text)
    inspections = data.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in COMMANDS if chosen is None else [chosen]:
        summary, _, examples = str(module(name).__doc__).partition("\n\n")
        group = inspections if name.startswith("data ") else commands
        command = group.add_parser(
            name.removeprefix("data "),
            help=summary,
            description=summary,
            examples=examples.strip().splitlines(),
            more=getattr(module(name), "ADVANCED", ()),
        )
        if name == chosen:
            module(name).add_arguments(command)
            command.set_defaults(command=name)
    return parser


if __name__ == "__main__":
    sys.exit(main())
