"""Check a run before anything is prepared, so that mistakes show at once and not after minutes.

Torch is imported only when `check_run` is called.
"""

from __future__ import annotations

from pe.runs import Run
from pe.training.start import check_source, takes_searched_factors


def check_run(run: Run) -> None:
    """Refuse what training would refuse later.

    A run that is recorded already can be shown without its corpus, so that is not looked for then.

    Raises:
        ValueError: the encoding, its options, the corpus or the tokenizer cannot be used.
        RunError: the run is recorded, and the source code of its encoding has changed since.
    """
    from pe.data.corpora import open_corpus
    from pe.data.tokenizer import plan_tokenizer
    from pe.encodings import check
    from pe.encodings.core.spec import layer_specs

    recipe = run.recipe
    layer_specs(recipe.pe, recipe.num_hidden_layers)
    unknown_yet = ["long_factor"] if takes_searched_factors(recipe) else []
    check(
        recipe.pe,
        {name: value for name, value in recipe.pe_options.items() if name not in unknown_yet},
        original_length=recipe.context_length,
        head_dim=recipe.head_dim,
        num_heads=recipe.num_attention_heads,
        num_kv_heads=recipe.num_key_value_heads,
        hidden_size=recipe.hidden_size,
    )
    if run.exists():
        check_source(run)
        return
    open_corpus(recipe.corpus, recipe.separator)
    if recipe.tokenizer == "bpe":
        plan_tokenizer(recipe.tokenizer, recipe.vocab_size)
