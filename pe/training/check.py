"""Check a run before anything is prepared, so that mistakes show at once and not after minutes.

Torch is imported only when `check_run` is called.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pe.recipes.recipe import Recipe
from pe.runs import Run
from pe.training import processes
from pe.training.start import (
    check_sizes,
    check_source,
    recorded_parent,
    takes_searched_factors,
)

if TYPE_CHECKING:
    from torch import nn


def check_run(run: Run) -> None:
    """Refuse what training would refuse later.

    A run that is recorded already can be shown without its corpus, so that is not looked for then.

    Raises:
        ValueError: the encoding, its options, the corpus or the tokenizer cannot be used, the batch
            does not divide among the processes that train it, or the sizes are not those of the
            run that it starts from, if that is recorded already.
        RunError: the run is recorded, and the source code of its encoding has changed since.
    """
    from pe.data.corpora import open_corpus
    from pe.data.tokenizer import check_tokenizer
    from pe.encodings import check, layer_encodings
    from pe.encodings.core.spec import layer_specs

    recipe = run.recipe
    layer_specs(recipe.pe, recipe.num_hidden_layers)
    sizes, options = encoding_sizes(recipe), encoding_options(recipe)
    check(recipe.pe, options, **sizes)
    if recipe.tune == "encoding" or recipe.encoding_rate != 1:
        layers = layer_encodings(recipe.pe, recipe.num_hidden_layers, **(sizes | options))
        check_learns(recipe, (parameter for enc in layers for parameter in enc.parameters()))
    recorded = run.exists()
    if not (recorded and run.read()["status"] == "complete"):
        divided(recipe, processes.together())
        _check_best(recipe)
        parent = recorded_parent(recipe, run.directory.parent)
        if parent is not None:
            check_sizes(recipe, parent.recipe)
    if recorded:
        check_source(run)
        return
    open_corpus(recipe.corpus, recipe.separator)
    check_tokenizer(recipe.tokenizer, recipe.vocab_size)


def encoding_sizes(recipe: Recipe) -> dict[str, int]:
    """Return the sizes of the recipe's model, as `pe.encodings.encoding` takes them."""
    return {
        "original_length": recipe.context_length,
        "head_dim": recipe.head_dim,
        "num_heads": recipe.num_attention_heads,
        "num_kv_heads": recipe.num_key_value_heads,
        "hidden_size": recipe.hidden_size,
    }


def encoding_options(recipe: Recipe) -> dict[str, Any]:
    """Return the options of the encoding that are known before the recipe's parent is trained."""
    unknown_yet = ["long_factor"] if takes_searched_factors(recipe) else []
    return {name: value for name, value in recipe.pe_options.items() if name not in unknown_yet}


def check_learns(recipe: Recipe, parameters: Iterable[nn.Parameter]) -> None:
    """Refuse a recipe that has settings for the encoding's parameters, where there are none.

    Args:
        parameters: those of the encoding.

    Raises:
        ValueError: ``tune`` or ``encoding_rate`` asks for parameters, and none can be trained.
    """
    if any(parameter.requires_grad for parameter in parameters):
        return
    if recipe.tune == "encoding":
        raise ValueError(
            f"tune: {recipe.pe} has no parameters that could be tuned alone; use tune 'all', or an "
            "encoding that learns"
        )
    if recipe.encoding_rate != 1:
        raise ValueError(
            f"encoding_rate: {recipe.pe} has no parameters that could learn at "
            f"{recipe.encoding_rate} times the rate; leave it at 1"
        )


def _check_best(recipe: Recipe) -> None:
    """Raise ValueError for ``keep_best`` where the last weights are the only ones to compare."""
    often = 0 < recipe.validate_every < recipe.steps or (recipe.start_from and recipe.steps)
    if recipe.keep_best and not often:
        raise ValueError(
            f"keep_best: no effect with validate_every {recipe.validate_every} and "
            f"{recipe.steps} steps, where only the last weights are validated; set validate_every "
            "to less than steps"
        )


def divided(recipe: Recipe, count: int) -> tuple[int, int]:
    """Return the number of windows per process of a batch, and that per forward pass.

    Args:
        count: the number of processes.

    Raises:
        ValueError: the windows do not divide evenly, or fsdp is set and there is one process.
    """
    if recipe.batch_size % count:
        raise ValueError(
            f"batch_size {recipe.batch_size} does not divide among {count} processes; choose "
            f"{processes.PROCESSES} (for pe memory --processes) so that it does"
        )
    windows = recipe.batch_size // count
    micro = min(recipe.micro_batch_size or windows, windows)
    if windows % micro:
        raise ValueError(
            f"micro_batch_size {micro} does not divide the {windows} windows that each of {count} "
            "processes gets"
        )
    if recipe.fsdp and count == 1:
        raise ValueError(
            "fsdp: spreads a model over processes, and there is one; start several with "
            f"{processes.PROCESSES} (for pe memory --processes), or leave fsdp out"
        )
    return windows, micro
