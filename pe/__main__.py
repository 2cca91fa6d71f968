"""The ``pe`` command, also ``python -m pe``.

pe check yarn -o factor=8.0          run the laws that an encoding's traits promise
pe check my_module:MyEncoding
"""

from __future__ import annotations

import argparse
import ast
import os
import sys
from collections.abc import Sequence
from typing import Any


def parsed(text: str) -> tuple[str, Any]:
    """``key=value`` with a Python value, true or false, or a plain word."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"expected key=value, got {text!r}")
    if value.lower() in ("true", "false"):
        return key, value.lower() == "true"
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


def check(arguments: argparse.Namespace) -> int:
    """Run the laws and print what came out: 0 if none is broken, 1 if one is, 2 if none can run."""
    sys.path.insert(0, os.getcwd())  # a console script does not look for modules where it is called
    from pe.conformance import check_laws

    try:
        report = check_laws(arguments.encoding, dict(arguments.option), arguments.law)
    except ValueError as error:
        print(f"pe check: {error}", file=sys.stderr)
        return 2
    print(report)
    return 0 if report.ok else 1


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and do what it says."""
    parser = argparse.ArgumentParser(prog="pe", description="Positional encodings.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    checking = commands.add_parser(
        "check", help="run the laws that an encoding's traits promise, and report"
    )
    checking.add_argument("encoding", help="a name, names joined by +, or module:Class")
    repeated: dict[str, Any] = {"action": "append", "default": []}
    checking.add_argument(
        "-o", "--option", type=parsed, metavar="KEY=VALUE", **repeated,
        help="an option of the encoding; may be given several times",
    )  # fmt: skip
    checking.add_argument(
        "-l", "--law", metavar="NAME", **repeated, help="run this law only; several times: these"
    )
    checking.set_defaults(run=check)
    arguments = parser.parse_args(argv)
    status: int = arguments.run(arguments)
    return status


if __name__ == "__main__":
    sys.exit(main())
