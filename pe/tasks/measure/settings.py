"""Sizes of the small models and settings of their training. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from pe.tasks.core.options import Options

STOP_EVERY = 50
"""Steps between two checks of the setting ``stop_loss``."""


class Settings(Options):
    """Sizes and training of the models. The defaults are those of the comparison app.

    There are two differences. The app's feed-forward block has two matrices of width 512; ours is
    SwiGLU with three of width 352, which have about as many parameters. The app has dropout 0.1,
    and our models have none.
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
    """The largest norm of a model's gradient. A larger gradient is scaled down to it."""
    precision: Literal["float32", "tf32", "bfloat16", "auto"] = "float32"
    """As in a recipe, ``auto`` is bfloat16 on CUDA. With ``tf32`` CUDA keeps 10 bits of each
    number's fraction in products of float32 matrices; other devices use float32."""
    stop_loss: Annotated[float, Field(ge=0)] = 0.0
    """Training ends early when the mean loss of the last `STOP_EVERY` steps is below this in every
    model. It is checked every `STOP_EVERY` steps. 0: never."""

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> Settings:
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width: {self.width} does not divide into {self.heads} heads of an even width; "
                f"take a multiple of {2 * self.heads}"
            )
        return self

    @model_validator(mode="after")
    def _warmup_ends(self) -> Settings:
        if self.warmup_steps and self.warmup_steps >= self.steps:
            raise ValueError(
                f"warmup_steps: {self.warmup_steps} of {self.steps} steps, so that no step has the "
                "full learning rate; expected fewer than the steps"
            )
        return self
