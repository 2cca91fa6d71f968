"""{api} pe.encoding: the signature and the docstring of a public name.

The docstrings' `Args:`, `Returns:` and `Raises:` become lists. A class shows its public methods in
its signature block. Types stay as they are written in the code, without links.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import textwrap
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
        text = f"```python\n{signature(name, value)}\n```\n\n{prose(inspect.getdoc(value) or '')}"
        return self.markdown(text)


def find(name: str) -> Any:
    """Return the object that a dotted name means. The name begins with a module."""
    parts = name.split(".")
    value: Any = importlib.import_module(parts[0])
    for i, part in enumerate(parts[1:], 2):
        try:
            value = getattr(value, part)
        except AttributeError:
            value = importlib.import_module(".".join(parts[:i]))
    return value


def signature(name: str, value: Any) -> str:
    """Write the signature of a function, or that of a class with those of its public methods."""
    if not inspect.isclass(value):
        return _call(name, value)
    if dataclasses.is_dataclass(value) and "__init__" not in inspect.getsource(value):
        lines = [f"class {name}:"]
        for field in dataclasses.fields(value):
            default = "" if field.default is dataclasses.MISSING else f" = {field.default!r}"
            lines.append(f"    {field.name}: {field.type}{default}")
        return "\n".join(lines)
    lines = [f"class {name}:"]
    if "__init__" in vars(value):
        lines = [_call(f"class {name}", value.__init__, method=True) + ":", ""]
    for key, member in vars(value).items():
        if key.startswith("_") or not inspect.getdoc(member):
            continue
        if isinstance(member, property):
            text = key
        elif inspect.isroutine(getattr(value, key)):
            text = _call(key, getattr(value, key), method=True)
        else:
            continue
        first = (inspect.getdoc(member) or "").partition("\n")[0]
        lines += textwrap.wrap(first, 72, initial_indent="    # ", subsequent_indent="    # ")
        lines += [textwrap.indent(text, "    "), ""]
    return "\n".join(lines).rstrip()


class _Written:
    """An annotation that prints as it stands in the source; `Annotated` prints as its type."""

    def __init__(self, annotation: Any) -> None:
        text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
        noted = re.fullmatch(r"Annotated\[(.*?), (['\"])(.*)\2\]", text, re.S)
        self.text, self.note = (noted[1], noted[3]) if noted else (text, "")

    def __repr__(self) -> str:
        return self.text


def _call(name: str, value: Any, method: bool = False) -> str:
    empty = inspect.Signature.empty
    found = inspect.signature(value)
    parameters = [
        p if p.annotation is empty else p.replace(annotation=_Written(p.annotation))
        for p in found.parameters.values()
        if not (method and p.name in ("self", "cls"))
    ]
    parts = [(str(p), getattr(p.annotation, "note", "")) for p in parameters]
    kinds = [p.kind for p in parameters]
    if p_only := [i for i, kind in enumerate(kinds) if kind is inspect.Parameter.KEYWORD_ONLY]:
        parts.insert(p_only[0], ("*", ""))
    result = found.return_annotation
    arrow = "" if result is empty or name.startswith("class ") else f" -> {_Written(result)}"
    text = f"{name}({', '.join(part for part, _ in parts)}){arrow}"
    if len(text) <= 68 and not any(note for _, note in parts):
        return text
    lines = [f"{name}("]
    for part, note in parts:
        lines += textwrap.wrap(note, 72, initial_indent="    # ", subsequent_indent="    # ")
        lines.append(f"    {part},")
    return "\n".join([*lines, f"){arrow}"])


def prose(doc: str) -> str:
    """Convert a docstring to Markdown. Sections of Google's style become lists with a heading."""
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
