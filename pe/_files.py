"""Find files that come with the package, write files atomically, and read YAML."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def shipped(folder: str) -> Path:
    """Return the folder of shipped ``notebooks`` or ``studies``.

    An installed package has a copy of it; in a checkout it lies beside ``pe/``.
    """
    package = Path(__file__).resolve().parent
    copy = package / "shipped" / folder
    return copy if copy.is_dir() else package.parent / folder


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old text or the new one, also after a crash."""
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
    """Return the content of a YAML file, None for an empty one.

    Raises:
        ValueError: the file is not YAML in UTF-8, or it has a key twice. (YAML's own readers keep
            the second one silently.) The message names the file and the line.
    """
    import yaml

    try:
        text = path.read_text(encoding="utf-8-sig")
        # The reader in C is faster, but not every build of PyYAML has it.
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
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
        raise ValueError(f"{path}: {line}expected YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: expected YAML: {' '.join(str(error).split())}") from None


def _refuse_repeated_keys(path: Path, top: Any) -> None:
    nodes, visited = [top], set()
    while nodes:
        node = nodes.pop()
        if id(node) in visited:  # an alias, which may stand for a node that contains it
            continue
        visited.add(id(node))
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
