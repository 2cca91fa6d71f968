"""The run that train.ipynb trains."""

from __future__ import annotations

from inspect import signature

from pe.notebooks.parameters.common import (
    Count,
    Options,
    Positive,
    Whole,
    launcher,
    other_fields,
    refuse_strange_study,
    without_none,
)
from pe.runs import Run, root
from pe.training.check import check_run


@launcher
def configure(
    pe: str = "rope",
    recipe: str = "auto",
    study: str = "local",
    seed: Whole = 0,
    steps: Whole | None = None,
    corpus: str | None = None,
    context_length: Count | None = None,
    batch_size: Count | None = None,
    learning_rate: Positive | None = None,
    pe_options: Options | None = None,
    overrides: Options | None = None,
) -> Run:
    """Return the run that the parameters of train.ipynb describe. Writes nothing.

    Its directory is ``runs.root() / study / recipe.run_name()``; its recipe is set.

    Args:
        recipe: a name of `pe.RECIPES`; auto: as the machine allows. What is None is as it says.
        overrides: fields of the recipe that have no parameter.

    Raises:
        ValueError: an unknown encoding, recipe, corpus or field (the nearest is named), or a
            value of another type than its parameter's.
    """
    from pe.recipes.named import recipe as named_recipe

    refuse_strange_study(study)
    fields = {"pe": pe, "pe_options": pe_options or {}, "seed": seed} | without_none(
        steps=steps, corpus=corpus, context_length=context_length, batch_size=batch_size,
        learning_rate=learning_rate,
    )  # fmt: skip
    fields |= other_fields(overrides, signature(configure).parameters)
    chosen = named_recipe(recipe, **fields)
    run = Run(root() / study / chosen.run_name(), recipe=chosen)
    check_run(run)
    return run
