"""The cells of a speed run and their order. Does not import torch at the top.

A *cell* is one system in one mode at one length, always with the same number of tokens:

    train    a full training step: forward, backward, clipping, AdamW
    prefill  one forward pass without gradients, logits of the last token
    small    a training step of one window of 128 tokens, which shows the overhead

GPU time is limited and compiling takes most of it. So the most important cells come first.
Encodings that differ from RoPE only in their frequencies compile to the same graph and come last.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

from pe._errors import unknown
from pe.recipes.named import recipe as named_recipe
from pe.recipes.recipe import Recipe
from pe.speed.names import PEERS, all_encodings, family_of, library, spelled
from pe.speed.record import MAIN, MODES, SMALL, Settings

FIRST = ("none", "rotary", "bias")
"""Families whose members differ in their cost."""


class Cell(NamedTuple):
    """One measurement."""

    system: str
    mode: str
    length: int
    batch: int


def settings(
    recipe: str = "auto",
    tokens: int = 0,
    lengths: Sequence[int] = (),
    modes: Sequence[str] = (),
    encodings: Sequence[str] = (),
    peers: Sequence[str] | None = None,
    repeats: int = 0,
    compiled: bool | None = None,
    deterministic: bool = False,
) -> Settings:
    """Return settings, with defaults that depend on the machine. NoPE is always measured.

    Args:
        encodings: () for all that `pe.speed.names` lists. compiled: None: on CUDA only.
        peers: None for those that can be imported.

    Raises:
        ValueError: an unknown name, or a length that does not divide the tokens.
    """
    from pe import devices

    cuda = devices.choose().type == "cuda"
    sizes = named_recipe(recipe)
    tokens = tokens or (65_536 if cuda else 2_048)
    lengths = tuple(lengths) or ((1024, 4096, 16384, 32768) if cuda else (256, 512))
    for length in lengths:
        if length < 1 or tokens % length:
            raise ValueError(
                f"lengths: {tokens} tokens do not divide into windows of {length}; choose lengths "
                "that divide the tokens, or other tokens"
            )
    for mode in modes:
        if mode not in MODES:
            raise unknown("mode", mode, MODES)
    if repeats < 0:
        raise ValueError(f"repeats: expected 0 (the default) or more, got {repeats}")
    names = list(dict.fromkeys(["nope", *(encodings or all_encodings())]))
    for name in names:
        _check(name, sizes)
    chosen = importable() if peers is None else tuple(peers)
    for peer in chosen:
        if peer not in PEERS:
            raise unknown("peer", peer, PEERS)
    return Settings(
        recipe=sizes.name,
        tokens=tokens,
        lengths=list(dict.fromkeys(lengths)),
        modes=[mode for mode in MODES if mode in (modes or MODES)],
        systems=[*names, *(peer for peer in PEERS if peer in chosen)],
        repeats=repeats or (5 if cuda else 2),
        compiled=cuda if compiled is None else compiled,
        deterministic=deterministic,
    )


def parameters(chosen: Settings, name: str) -> dict[str, Any]:
    """Return the parameters of speed.ipynb that lead to these settings, under this name."""
    kinds: dict[bool, list[str]] = {True: [], False: []}
    for system in chosen.systems:
        kinds[system in PEERS].append(system)
    return chosen.model_dump(exclude={"systems"}) | {
        "name": name,
        "encodings": ",".join(kinds[False]),
        "peers": ",".join(kinds[True]) or "none",
        "lengths": ",".join(map(str, chosen.lengths)),
        "modes": ",".join(chosen.modes),
    }


def importable() -> tuple[str, ...]:
    """Return the peers whose library is installed; x-transformers is never a dependency.

    Raises:
        ValueError: a library is there, and something that it needs is not.
    """
    there = {}
    for name in dict.fromkeys(map(library, PEERS)):
        module = name.replace("-", "_")
        there[name] = find_spec(module) is not None
        try:
            if there[name]:
                import_module(module)
        except ImportError as error:
            raise ValueError(
                f"peers: {name} is installed and cannot be imported ({error}); install what it "
                "needs, or name the peers to be measured"
            ) from error
    return tuple(peer for peer in PEERS if there[library(peer)])


def order(chosen: Settings) -> list[Cell]:
    """Return all cells, the most important first."""
    lengths = chosen.lengths
    main = [n for n in lengths if n in MAIN] or list(lengths[:1])
    rest = [n for n in lengths if n not in main]
    systems = sorted(chosen.systems, key=_interest)  # stable: otherwise in the order given
    ours = [s for s in systems if _interest(s) <= 2]
    early = [s for s in systems if _interest(s) <= 3]
    late = [s for s in systems if s not in early]
    planned: list[Cell] = []

    def add(mode: str, who: Iterable[str], at: Iterable[int]) -> None:
        if mode not in chosen.modes:
            return
        for length in at:
            batch = 1 if mode == "small" else chosen.tokens // length
            cells = [Cell(system, mode, length, batch) for system in who]
            planned.extend(cell for cell in cells if cell not in planned)

    add("train", ours, main)
    add("train", early, main[:1])
    add("train", late, main[:1])
    add("train", early, main)
    add("train", early, rest)
    add("prefill", early, main)
    add("small", early, [SMALL])
    add("train", late, lengths)
    add("prefill", early, rest)
    add("prefill", late, lengths)
    add("small", late, [SMALL])
    return planned


def _interest(system: str) -> int:
    """Return the rank of a system in `order`: a smaller one is measured earlier.

    0 and 1: NoPE and RoPE. 2: others of `FIRST`. 3: peers. 4: the rest. 5: RoPE's own graph.
    """
    if library(system):
        return 3
    if system in ("nope", "rope"):
        return int(system == "rope")
    if same_graph_as_rope(system):
        return 5
    return 2 if family_of(system) in FIRST else 4


def same_graph_as_rope(system: str) -> bool:
    """Return whether an encoding differs from RoPE only in its frequencies."""
    from pe.encodings.core.frequencies import FrequencyTransform
    from pe.encodings.core.parts import part_classes

    spec, _ = spelled(system)
    names = {name.strip() for name in spec.split("+")}
    return all(
        issubclass(c, FrequencyTransform) for n, c in part_classes(spec).items() if n in names
    )


def _check(name: str, sizes: Recipe) -> None:
    from pe.training.build import build_config

    pe, options = spelled(name)
    build_config(dataclasses.replace(sizes, pe=pe, pe_options=options), sizes.vocab_size)
