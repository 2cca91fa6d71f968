"""Read papermill's command line the way papermill's own parser (click) will.

papermill loads its engines while it is being imported, before it parses ``sys.argv`` and before
``papermill.cli`` exists. The options are therefore restated here; tests compare them with the
installed papermill, so that a release with another option is noticed.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# How many values each option takes.
TWO = {"--parameters", "-p", "--parameters_raw", "-r"}
ONE = {
    "--parameters_file", "-f", "--parameters_yaml", "-y", "--parameters_base64", "-b", "--engine",
    "--autosave-cell-every", "--kernel", "-k", "--language", "-l", "--cwd", "--stdout-file",
    "--stderr-file", "--log-level", "--start-timeout", "--start_timeout", "--execution-timeout",
}  # fmt: skip
NONE = {
    "--help-notebook", "--inject-input-path", "--inject-output-path", "--inject-paths",
    "--request-save-on-cell-execute", "--no-request-save-on-cell-execute", "--prepare-only",
    "--prepare-execute", "--progress-bar", "--no-progress-bar", "--log-output", "--no-log-output",
    "--report-mode", "--no-report-mode", "--version", "-h", "--help",
}  # fmt: skip
_LONG_NAMES = {
    "-p": "--parameters", "-r": "--parameters_raw", "-f": "--parameters_file",
    "-y": "--parameters_yaml", "-b": "--parameters_base64",
}  # fmt: skip


@dataclass
class Command:
    """A parsed papermill command line."""

    paths: list[str] = field(default_factory=list)
    """The positional arguments: the notebook and, perhaps, the output."""
    options: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    """Options in the order given, long names where papermill's parameters have one."""

    def has(self, *names: str) -> bool:
        """Whether one of these options was given."""
        return any(name in names for name, _ in self.options)

    def last(self, name: str, default: str | None = None) -> str | None:
        """The value that wins when an option is given more than once."""
        found = [values[0] for option, values in self.options if option == name]
        return found[-1] if found else default

    def all(self, name: str) -> list[tuple[str, ...]]:
        """All values given for an option."""
        return [values for option, values in self.options if option == name]

    @property
    def prepare_only(self) -> bool:
        """Whether the notebook will be written but not run."""
        switches = [o for o, _ in self.options if o in ("--prepare-only", "--prepare-execute")]
        return bool(switches) and switches[-1] == "--prepare-only"


def parse(arguments: list[str]) -> Command | None:
    """Parse the words after ``papermill``; None if click will refuse them."""
    command, words = Command(), list(arguments)
    while words:
        word = words.pop(0)
        if word == "--":
            command.paths += words
            break
        if not word.startswith("-") or word == "-":
            command.paths.append(word)
            continue
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            if equals:
                words.insert(0, value)
            if not _take(command, name, words) or (equals and name in NONE):
                return None
            continue
        # -p, -ppe pope, -kpython3, -hk: short options may be joined with what follows.
        while word:
            name, word = word[:2], word[2:]
            if name in TWO | ONE and word:
                words.insert(0, word)
                word = ""
            if not _take(command, name, words):
                return None
            word = f"-{word}" if word else ""
    return command


def _take(command: Command, name: str, words: list[str]) -> bool:
    """Move an option's values from ``words`` to ``command``; False if that is impossible."""
    count = 2 if name in TWO else 1 if name in ONE else 0 if name in NONE else -1
    if count < 0 or len(words) < count:
        return False
    values = tuple(words[:count])
    del words[:count]
    command.options.append((_LONG_NAMES.get(name, name), values))
    return True


def passed_parameters(command: Command) -> dict[str, Any]:
    """The parameters of a command line, in papermill's order: -b, -f, -y, -p, -r.

    Raises:
        ValueError: a file that cannot be read or a text that is no mapping, named.
    """
    import yaml
    from papermill.iorw import NoDatesSafeLoader

    found: dict[str, Any] = {}
    for option in ("--parameters_base64", "--parameters_file", "--parameters_yaml"):
        for (value,) in command.all(option):
            try:
                if option == "--parameters_base64":
                    text = base64.b64decode(value).decode()
                else:
                    text = Path(value).read_text() if option.endswith("file") else value
                loaded = yaml.load(text, Loader=NoDatesSafeLoader) or {}
                found.update(loaded)
            except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
                why = " ".join(str(error).split())
                raise ValueError(f"{option} {value}: no parameters can be read ({why})") from error
    for name, value in command.all("--parameters"):
        found[name] = resolve_type(value)
    for name, value in command.all("--parameters_raw"):
        found[name] = value
    return found


def resolve_type(value: str) -> Any:
    """What ``-p name value`` means: papermill.cli._resolve_type, which cannot be imported yet."""
    words = {"True": True, "False": False, "None": None}
    if value in words:
        return words[value]
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
