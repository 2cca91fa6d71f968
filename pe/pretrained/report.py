"""What `pe.explain` returns: data that can be shown as Markdown and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pe._errors import unknown
from pe.pretrained.advice import Advice
from pe.pretrained.layers import Layer
from pe.pretrained.length import TrainingLength
from pe.pretrained.methods import Method
from pe.pretrained.mistakes import Mistake
from pe.pretrained.rope import Frozen, Rope
from pe.pretrained.settings import Settings
from pe.pretrained.show import markdown

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Kind(Frozen):
    """Layers that do the same about positions."""

    layers: tuple[int, ...]
    """Their indices, from 0."""
    does: Layer


class Frequency(Frozen):
    """One frequency of the layers that see furthest, as the model was trained."""

    index: int
    radians: float
    """Angle per token."""
    wavelength: float
    """Tokens of a full rotation; inf for a frequency of 0."""
    turns: float
    """Full rotations in the training length, or in the window where there is one."""

    @property
    def completed(self) -> bool:
        """Whether training showed every angle of it."""
        return self.turns >= 1


class Explanation(Frozen):
    """A model's positions, explained. `markdown` and `figure` show it."""

    name: str
    model_type: str
    kinds: tuple[Kind, ...]
    main: Rope
    """The rotation of the layers that see furthest; methods are about them."""
    layer_type: str | None
    """What transformers calls these layers, where layers differ in their settings."""
    reach: int | None
    """The number of tokens that a query in these layers sees. None: it sees all before it."""
    training: TrainingLength
    frequencies: tuple[Frequency, ...]
    length: int
    """Tokens to be read."""
    asked: bool
    """False: nobody asked for ``length``; it is four times the training length."""
    methods: tuple[Method, ...]
    advice: Advice
    settings: dict[str, Settings]
    """The settings of each method that has any."""
    no_settings: dict[str, str]
    """The reason for each method that has no settings."""
    warnings: tuple[Mistake, ...]
    notes: tuple[str, ...]

    @property
    def span(self) -> int:
        """Tokens between which distances occurred in training: its length, or the window."""
        return min(self.reach or self.training.tokens, self.training.tokens)

    @property
    def never_completed(self) -> tuple[int, ...]:
        """Indices of the frequencies that rotate and never completed a rotation in training."""
        return tuple(f.index for f in self.frequencies if not f.completed and f.radians > 0)

    @property
    def first_unseen(self) -> int | None:
        """The first distance with an angle that training did not have; None: there is none."""
        return self.method("as_it_is").first_unseen

    def method(self, name: str) -> Method:
        """Return a method by its name."""
        for method in self.methods:
            if method.name == name:
                return method
        raise unknown("method", name, [method.name for method in self.methods])

    def markdown(self) -> str:
        """Return the explanation as Markdown."""
        return markdown(self)

    def figure(self) -> Figure:
        """Draw turns of each frequency in training, and how far methods go beyond its angles."""
        from pe.pretrained.picture import picture

        return picture(self)

    def save_figure(self, path: str | Path) -> Path:
        """Write the picture as SVG, or in the format that the file's ending names."""
        target = Path(path)
        if target.suffix in ("", ".svg"):
            from pe.figures.style import save

            return save(self.figure(), target.with_suffix(".svg"))
        self.figure().savefig(target, dpi=150, facecolor="white")
        return target

    def __str__(self) -> str:
        return self.markdown()

    def _repr_markdown_(self) -> str:
        return self.markdown()


def kinds_of(layers: Sequence[Layer]) -> tuple[Kind, ...]:
    """Return the layers in groups that do the same, in the order of their first ones."""
    groups: dict[int, list[int]] = {}
    for index, layer in enumerate(layers):
        groups.setdefault(layers.index(layer), []).append(index)
    return tuple(Kind(layers=tuple(own), does=layers[first]) for first, own in groups.items())
