"""The argument parser of every command: errors in one line, suggestions, short and complete help."""

import argparse
import difflib
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NoReturn

from captioner.errors import UsageError


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question about the known name that is most similar, or nothing."""
    near = difflib.get_close_matches(name, list(known), 1, 0.6)
    return f" (did you mean {near[0]}?)" if near else ""


class Parser(argparse.ArgumentParser):
    """An argument parser that raises its errors.

    Args:
        examples: command lines for the end of the help.
        more: destinations of the options that only ``--help-all`` shows.
    """

    def __init__(
        self, *, examples: Sequence[str] = (), more: Collection[str] = (), **options: Any
    ) -> None:
        listed = "\n".join(f"  {example}" for example in examples)
        options.setdefault("epilog", f"examples:\n{listed}" if examples else None)
        super().__init__(add_help=False, formatter_class=_Formatter, **options)
        self.more = more
        self.add_argument("-h", "--help", action=_Help, nargs=0, help="show this help")
        if more:
            self.add_argument("--help-all", action=_Help, nargs=0, help="show all options")

    def error(self, message: str) -> NoReturn:
        """Raise the error instead of printing the usage."""
        raise UsageError(f"{message} (see {self.prog} --help)")

    def check_names(self, arguments: Iterable[str]) -> None:
        """Raise UsageError for an unknown option, naming the most similar one; argparse does not."""
        known = self._option_string_actions
        for argument in arguments:
            name = argument.partition("=")[0]
            if name == "--":
                return
            if name.startswith("--") and not any(option.startswith(name) for option in known):
                self.error(f"unknown option {name}{did_you_mean(name, known)}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = list(map(str, action.choices))
            message = f"unknown value {value!r}{did_you_mean(str(value), known)}"
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
        if name != "--help-all" and isinstance(parser, Parser):
            for action in parser._actions:
                if action.dest in parser.more:
                    action.help = argparse.SUPPRESS
        parser.print_help(sys.stdout)
        parser.exit()
