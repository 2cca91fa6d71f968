"""Find files that come with the package, write files atomically, and read YAML and studies."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pe._errors import unknown


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


def read_study(name: str, folder: Path, *, mini: bool = False) -> tuple[Path, dict[str, Any]]:
    """Return the path and the fields of a study file.

    Args:
        name: a file of ``folder``, without its ending, or a path that ends in .yaml.
        mini: the study in miniature: the fields of its part ``mini`` replace others.

    Raises:
        ValueError: there is no such study, it has no miniature, or its file is no mapping.
    """
    path = Path(name)
    if path.suffix != ".yaml":
        known = {p.stem: p for p in sorted(folder.glob("*.yaml"))}
        if name not in known:
            raise unknown("study", name, known)
        path = known[name]
    elif not path.is_file():
        raise ValueError(f"{path}: there is no such file; give a path, or a study of {folder}")
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected fields such as title and study, got {content!r}")
    small = content.pop("mini", None)
    if mini and small is None:
        raise ValueError(f"{path}: the study has no part 'mini'; leave --mini out, or add it")
    return path, content | small if mini else content


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
