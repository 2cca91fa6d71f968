"""{api} pe.encoding: a name's signature and docstring, straight from the package.

The docstrings' `Args:`, `Returns:` and `Raises:` become lists. A class shows its public methods in
its signature block. Types stay as they are written in the code, without links.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from typing import Any

from book_directives import Block

_SECTIONS = ("Args", "Returns", "Raises", "Yields", "Attributes")


class Api(Block):
    """Signature and docstring of one public name."""

    required_arguments = 1

    def run(self) -> list[Any]:
        name = self.arguments[0]
        try:
            value = find(name)
        except (ImportError, AttributeError) as error:
            return self.warn(f"{name} cannot be documented: {error}")
        if not inspect.getdoc(value):
            return self.warn(f"{name} has no docstring")
        source = inspect.getsourcefile(value)
        if source:
            self.env.note_dependency(source)
        text = f"```python\n{signature(name, value)}\n```\n\n{prose(inspect.getdoc(value) or '')}"
        return self.markdown(text)


def find(name: str) -> Any:
    """The object behind a dotted name that begins with a module."""
    parts = name.split(".")
    value: Any = importlib.import_module(parts[0])
    for i, part in enumerate(parts[1:], 2):
        try:
            value = getattr(value, part)
        except AttributeError:
            value = importlib.import_module(".".join(parts[:i]))
    return value


def signature(name: str, value: Any) -> str:
    """How it is called; for a class, with its public methods below."""
    if not inspect.isclass(value):
        return _call(name, value)
    if dataclasses.is_dataclass(value):
        lines = [f"class {name}:"]
        for field in dataclasses.fields(value):
            default = "" if field.default is dataclasses.MISSING else f" = {field.default!r}"
            lines.append(f"    {field.name}: {field.type}{default}")
        return "\n".join(lines)
    lines = [f"class {name}:"]
    for key, member in vars(value).items():
        if key.startswith("_") or not inspect.getdoc(member):
            continue
        if isinstance(member, property):
            lines.append(f"    {key}  # {_first(member)}")
        elif callable(getattr(value, key)):
            lines.append(f"    {_call(key, getattr(value, key), method=True)}  # {_first(member)}")
    return "\n".join(lines)


def _first(member: Any) -> str:
    return (inspect.getdoc(member) or "").partition("\n")[0]


def _call(name: str, value: Any, method: bool = False) -> str:
    parameters = inspect.signature(value)
    if method:
        kept = [p for p in parameters.parameters.values() if p.name not in ("self", "cls")]
        parameters = parameters.replace(parameters=kept)
    text = name + str(parameters).replace("'", "")
    if len(text) > 90:
        inside = [f"    {p},".replace("'", "") for p in parameters.parameters.values()]
        _, arrow, result = text.rpartition(" -> ")
        text = "\n".join([f"{name}(", *inside, ")" + (f" -> {result}" if arrow else "")])
    return text


def prose(doc: str) -> str:
    """A docstring as Markdown: Google-style sections become headed lists."""
    result: list[str] = []
    section = False
    for line in doc.replace("``", "`").splitlines():
        head = re.fullmatch(rf"({'|'.join(_SECTIONS)}):\s*(.*)", line)
        if head:
            section = True
            result += ["", f"**{head[1]}**{': ' + head[2] if head[2] else ''}", ""]
        elif section and (item := re.fullmatch(r" {4}(\S[^:]*): (.*)", line)):
            result.append(f"- `{item[1]}`: {item[2]}")
        elif section and line.startswith("    "):
            result.append("  " + line.strip())
        else:
            section = section and not line.strip()
            result.append(line)
    return "\n".join(result)
