"""Sizes of small models, and how they are trained. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from pe.tasks.core.options import Options

STOP_EVERY = 50


class Settings(Options):
    """Sizes of the models and how they are trained; defaults are those of the comparison app.

    Its model has a feed-forward block of two matrices of width 512, here it is SwiGLU's three of
    352, which is as many numbers; and it has dropout 0.1, here there is none.
    """

    layers: Annotated[int, Field(ge=1)] = 2
    width: Annotated[int, Field(ge=1)] = 128
    heads: Annotated[int, Field(ge=1)] = 4
    feedforward: Annotated[int, Field(ge=1)] = 352
    steps: Annotated[int, Field(ge=0)] = 300
    batch_size: Annotated[int, Field(ge=1)] = 64
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    clip: Annotated[float, Field(gt=0)] = 1.0
    """Largest norm of a model's gradient."""
    precision: Literal["float32", "tf32", "bfloat16", "auto"] = "float32"
    """As in a recipe: ``auto`` is bfloat16 on CUDA. ``tf32``: on CUDA, products of float32 matrices
    keep 10 bits of each number's fraction; elsewhere it is float32."""
    stop_loss: Annotated[float, Field(ge=0)] = 0.0
    """Training ends early once, in every model, the mean loss of the last `STOP_EVERY` steps is
    below this; looked at every `STOP_EVERY` steps. 0: never."""

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> Settings:
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width: {self.width} does not divide into {self.heads} heads of an even width; "
                f"take a multiple of {2 * self.heads}"
            )
        return self
