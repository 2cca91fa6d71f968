"""The language of specs, which names the parts of each layer.

    rope                                      a name
    rope+alibi                                a sum of parts in one layer
    rope+window:512                           a part with its number
    rope(theta=1e6)                           a part with options of this layer
    3*(rope + window:512), nope               a schedule of four layers
    2*(5*(rope+window:512), rope), 2*rope     a schedule with a schedule inside
    command_a                                 a schedule of `pe.encodings.core.presets`

A schedule is repeated until all layers of a model have a spec. The number of layers must be a
multiple of its length.
"""

from __future__ import annotations

import ast
import functools
import re
from typing import Any, NamedTuple

from pe.encodings.core.presets import PRESETS

_NAME = re.compile(r"[^\s+,*()=]+")
_COUNT = re.compile(r"(\d+)\s*\*")
_VALUE = re.compile(r"[^\s,()]+")
_ARGUMENT = re.compile(r"([^:]+):(-?\d+)")
LONGEST = 1024
"""The largest number of layers in one schedule."""


class PartSpec(NamedTuple):
    """One part of a layer in a spec."""

    name: str
    """Name in the registry, or ``module:Class``."""
    argument: int | None = None
    """The number after a colon, as in ``window:512``."""
    options: tuple[tuple[str, Any], ...] = ()
    """The options in parentheses, as in ``rope(theta=1e6)``."""

    def __str__(self) -> str:
        number = "" if self.argument is None else f":{self.argument}"
        options = ", ".join(f"{name}={value}" for name, value in self.options)
        return f"{self.name}{number}" + (f"({options})" if options else "")


LayerSpec = tuple[PartSpec, ...]


@functools.lru_cache(maxsize=1024)
def parse(spec: str) -> tuple[LayerSpec, ...]:
    """Return the layers that ``spec`` lists, each a tuple of parts; a plain spec lists one.

    Raises:
        ValueError: it does not follow the language. The message shows the place.
    """
    if not isinstance(spec, str):
        raise ValueError(f"expected the name of an encoding, got {spec!r}")
    preset = PRESETS.get(spec.strip())
    reader = _Reader(spec if preset is None else preset.spec)
    layers = reader.schedule()
    if reader.rest():
        raise reader.mistake("a comma or the end")
    return tuple(layers)


def layer_specs(spec: str, num_layers: int) -> list[LayerSpec]:
    """Return the spec of each of ``num_layers`` layers.

    Raises:
        ValueError: ``num_layers`` is no multiple of the schedule's length.
    """
    listed = parse(spec)
    if num_layers % len(listed):
        fits = max(1, num_layers // len(listed)) * len(listed)
        example = f", as in '{num_layers - 1}*rope, nope'" if num_layers > 1 else ""
        raise ValueError(
            f"{spec!r} lists {len(listed)} layers, which does not fit {num_layers}: expected a "
            f"multiple, such as {fits} layers, or a schedule of {num_layers}{example}"
        )
    return list(listed) * (num_layers // len(listed))


def joined(layer: LayerSpec) -> str:
    """Return the text of one layer's spec."""
    return "+".join(map(str, layer))


def part_names(spec: str) -> list[str]:
    """Return the names of all parts of all layers, without repetition."""
    return list(dict.fromkeys(part.name for layer in parse(spec) for part in layer))


def is_sum(spec: str) -> bool:
    """Return whether ``spec`` names more than one part."""
    layers = parse(spec)
    return len(layers) > 1 or len(layers[0]) > 1


class _Reader:
    """Parses the text from left to right."""

    def __init__(self, text: str) -> None:
        self.text, self.place = text, 0

    def rest(self) -> str:
        """Return the rest of the text, from the next character that is not a space."""
        self.place += len(self.text[self.place :]) - len(self.text[self.place :].lstrip())
        return self.text[self.place :]

    def mistake(self, expected: str) -> ValueError:
        """Return the error for the current place in the text."""
        rest = self.rest()
        where = f"{rest!r}" if rest else "the end"
        return ValueError(
            f"{self.text!r}: expected {expected} at character {self.place + 1}, which is where "
            f"{where} {'begins' if rest else 'is'}"
        )

    def take(self, mark: str) -> bool:
        """Skip ``mark`` if it comes next, and return whether it did."""
        there = self.rest().startswith(mark)
        self.place += len(mark) if there else 0
        return there

    def match(self, pattern: re.Pattern[str], expected: str) -> re.Match[str]:
        """Skip the text that matches the pattern, and return the match."""
        self.rest()
        match = pattern.match(self.text, self.place)
        if match is None:
            raise self.mistake(expected)
        self.place = match.end()
        return match

    def schedule(self) -> list[LayerSpec]:
        """Read items joined by commas."""
        layers = self.item()
        while self.take(","):
            layers += self.item()
        return layers

    def item(self) -> list[LayerSpec]:
        """Read a sum or a schedule in parentheses, and repeat it if a count is before it."""
        self.rest()
        counted = _COUNT.match(self.text, self.place)
        if counted is not None and int(counted[1]) < 1:
            raise self.mistake("a count of 1 or more")
        start, self.place = self.place, counted.end() if counted else self.place
        if self.take("("):
            layers = self.schedule()
            if not self.take(")"):
                raise self.mistake("a closing parenthesis")
        else:
            layers = [self.sum()]
        layers = layers * (int(counted[1]) if counted else 1)
        if len(layers) > LONGEST:
            self.place = start
            raise self.mistake(f"at most {LONGEST} layers")
        return layers

    def sum(self) -> LayerSpec:
        """Read parts joined by ``+``."""
        parts = [self.part()]
        while self.take("+"):
            parts.append(self.part())
        return tuple(parts)

    def part(self) -> PartSpec:
        """Read a name with its number and its options."""
        name = self.match(_NAME, "the name of an encoding")[0]
        numbered = _ARGUMENT.fullmatch(name)
        options: dict[str, Any] = {}
        if self.take("("):
            while not options or self.take(","):
                key = self.match(_NAME, "the name of an option")[0]
                if key in options:
                    raise self.mistake(f"{key} once only")
                if not self.take("="):
                    raise self.mistake(f"= and a value of {key}")
                options[key] = _value(self.match(_VALUE, f"a value of {key}")[0])
            if not self.take(")"):
                raise self.mistake("a closing parenthesis")
        given = tuple(options.items())
        if numbered is not None:
            return PartSpec(numbered[1], int(numbered[2]), given)
        return PartSpec(name, None, given)


def _value(text: str) -> Any:
    """Return a number, True, False or None in Python's notation; anything else is text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
