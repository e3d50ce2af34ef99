"""The argument parser of every command: errors in one line, suggestions, short and complete help."""

import argparse
import sys
from collections.abc import Collection, Sequence
from itertools import takewhile
from typing import Any, NoReturn

from captioner.errors import UsageError, did_you_mean


class Parser(argparse.ArgumentParser):
    """An argument parser that raises its errors and takes no abbreviations.

    Args:
        examples: command lines for the end of the help.
        more: destinations of the options that only ``--help-all`` shows.
    """

    def __init__(
        self, *, examples: Sequence[str] = (), more: Collection[str] = (), **options: Any
    ) -> None:
        if examples:
            options["epilog"] = "\n  ".join(["examples:", *examples])
        super().__init__(add_help=False, allow_abbrev=False, formatter_class=_Formatter, **options)
        self.more = more
        self.add_argument("-h", "--help", action=_Help, nargs=0, help="show this help")
        if more:
            self.add_argument("--help-all", action=_Help, nargs=0, help="show all options")

    def error(self, message: str) -> NoReturn:
        """Raise the error instead of printing the usage."""
        raise UsageError(f"{message} (see {self.prog} --help)")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse like argparse, but name the option that is most similar to an unknown one."""
        known = self._option_string_actions
        before_command = takewhile(lambda argument: argument.startswith("-"), args)
        for argument in args if self._subparsers is None else before_command:
            name = argument.partition("=")[0]
            if name == "--":
                break
            if name.startswith("--") and name not in known:
                self.error(f"unknown option {name}{did_you_mean(name, known)}")
        return super().parse_known_args(args, namespace)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = list(map(str, action.choices))
            message = f"unexpected value {value!r}{did_you_mean(str(value), known)}"
            raise argparse.ArgumentError(action, f"{message}; expected {', '.join(known)}")


class _Formatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Adds defaults, except empty ones, and keeps the lines of examples."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if not action.default or "(default" in (action.help or ""):
            return action.help
        if isinstance(action.default, list):
            return f"{action.help} (default: {' '.join(action.default)})"
        return super()._get_help_string(action)


class _Help(argparse.Action):
    def __call__(
        self, parser: argparse.ArgumentParser, _namespace: object, _values: object, name: Any = None
    ) -> NoReturn:
        for action in parser._actions:
            if name != "--help-all" and action.dest in getattr(parser, "more", ()):
                action.help = argparse.SUPPRESS
        parser.print_help(sys.stdout)
        parser.exit()
