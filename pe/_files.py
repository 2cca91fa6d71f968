"""Files that come with the package, and files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def shipped(folder: str) -> Path:
    """``notebooks`` or ``studies``: the copy in an installed package, or those of the checkout."""
    package = Path(__file__).resolve().parent
    copy = package / "shipped" / folder
    return copy if copy.is_dir() else package.parent / folder


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader, or a crash, sees the old text or the new, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_yaml(path: Path) -> Any:
    """What a YAML file says.

    Raises:
        ValueError: it is not YAML in UTF-8, or a key is there twice, of which YAML's readers would
            drop the first without a word; names the file and the line.
    """
    import yaml

    try:
        text = path.read_text(encoding="utf-8-sig")
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)  # in C, where there is one
        node = loader.get_single_node()
        if node is None:
            return None
        _refuse_repeated_keys(path, node)
        return loader.construct_document(node)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected text in UTF-8 ({error})") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = "" if mark is None else f"line {mark.line + 1}: "
        raise ValueError(f"{path}: {line}no YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: no YAML: {' '.join(str(error).split())}") from None


def _refuse_repeated_keys(path: Path, top: Any) -> None:
    nodes = [top]
    while nodes:
        node = nodes.pop()
        if node.id == "sequence":
            nodes += node.value
        if node.id != "mapping":
            continue
        seen = set()
        for key, value in node.value:
            nodes.append(value)
            if key.id == "scalar" and (key.tag, key.value) in seen:
                line = key.start_mark.line + 1
                raise ValueError(f"{path}: line {line}: {key.value!r} is there twice; give it once")
            seen.add((key.tag, key.value) if key.id == "scalar" else id(key))
