"""Build the model and the optimizer of a recipe, and check what its evaluation asks of the text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from pe._errors import one_line
from pe._quiet import quiet_libraries
from pe.data import TokenData, evaluation_windows
from pe.data.needles import texts_of
from pe.encodings import Encoding
from pe.encodings.core.base import tightest
from pe.model import PEForCausalLM
from pe.model.config import PEConfig
from pe.model.convert import convert
from pe.model.initialize import draw_weights
from pe.recipes.recipe import Recipe
from pe.runs import RunError
from pe.training.check import check_learns
from pe.training.start import Start


def build_config(recipe: Recipe, vocab_size: int, eos_token_id: int | None = None) -> PEConfig:
    """Return the configuration of the recipe's model; the end token also begins a text."""
    return PEConfig(
        vocab_size=vocab_size,
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.intermediate_size,
        num_hidden_layers=recipe.num_hidden_layers,
        num_attention_heads=recipe.num_attention_heads,
        num_key_value_heads=recipe.num_key_value_heads,
        max_position_embeddings=recipe.context_length,
        pe=recipe.pe,
        pe_options=recipe.pe_options,
        qk_norm=recipe.qk_norm,
        joint_norm=recipe.joint_norm,
        softmax_scale=recipe.softmax_scale or None,
        dropout=recipe.dropout,
        bos_token_id=eos_token_id,
        eos_token_id=eos_token_id,
    )


def build_model(recipe: Recipe, vocab_size: int, eos_token_id: int | None = None) -> PEForCausalLM:
    """Return the recipe's model with initial weights, drawn by (seed, parameter name)."""
    model = PEForCausalLM(build_config(recipe, vocab_size, eos_token_id))
    std = model.config.initializer_range
    draw_weights(model, recipe.seed, std=std, embedding_std=recipe.embedding_std)
    return model


def model_for(recipe: Recipe, data: TokenData) -> PEForCausalLM:
    """Return the recipe's model with initial weights, for the vocabulary of a prepared corpus."""
    tokenizer = data.load_tokenizer()
    return build_model(recipe, data.vocab_size, tokenizer.eos_token_id)


def read_model(folder: Path, **options: Any) -> PEForCausalLM:
    """Load the model in ``folder``; ``options`` are those of `from_pretrained`.

    Raises:
        RunError: files are missing or damaged.
    """
    try:
        with quiet_libraries():
            model: PEForCausalLM = PEForCausalLM.from_pretrained(folder, **options)
    except Exception as error:  # the readers of JSON and safetensors raise errors of many types
        raise RunError(
            f"{folder} cannot be read ({one_line(error)[:200]}); train that run once more, in "
            "another study or after its folder is deleted"
        ) from error
    return model


def start_model(start: Start, recipe: Recipe) -> PEForCausalLM:
    """Load the weights of ``start`` in float32 and convert the model to the recipe's encoding.

    Raises:
        RunError: the weights cannot be read.
        ValueError: the model cannot be converted.
    """
    model = read_model(start.weights, dtype=torch.float32, dropout=recipe.dropout)
    return convert(
        model,
        recipe.pe,
        joint_norm=recipe.joint_norm or None,
        softmax_scale=recipe.softmax_scale or None,
        context_length=recipe.context_length,
        seed=recipe.seed,
        **recipe.pe_options,
    )


def build_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """Return AdamW for the model's parameters, in groups.

    Weight decay acts on matrices, but not on norms and not on the encoding's parameters. If
    ``encoding_rate`` is not 1, the encoding's parameters are a separate group with a
    ``rate_multiple``, which `set_rate` reads. With ``tune: encoding`` all others are frozen.

    Raises:
        ValueError: ``encoding_rate`` or ``tune`` asks for parameters of the encoding, and it has
            none.
    """
    encoding = _encoding_parameters(model)
    check_learns(recipe, encoding)
    if recipe.tune == "encoding":
        for parameter in set(model.parameters()) - encoding:
            parameter.requires_grad_(False)
    decayed: list[nn.Parameter] = []
    undecayed: list[nn.Parameter] = []
    encodings: list[nn.Parameter] = []
    own_rate = recipe.encoding_rate != 1
    for parameter in model.parameters():
        if recipe.tune == "encoding" and parameter not in encoding:
            continue
        if parameter in encoding:
            (encodings if own_rate else undecayed).append(parameter)
        else:
            (decayed if parameter.dim() >= 2 else undecayed).append(parameter)
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": recipe.weight_decay},
        {"params": undecayed, "weight_decay": 0.0},
    ]
    if own_rate:
        groups.append(
            {"params": encodings, "weight_decay": 0.0, "rate_multiple": recipe.encoding_rate}
        )
    return torch.optim.AdamW(
        groups, lr=recipe.learning_rate, betas=(recipe.beta1, recipe.beta2), fused=True
    )


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give every group of parameters the learning rate ``rate``, times its ``rate_multiple``."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("rate_multiple", 1.0)


def check_evaluation(recipe: Recipe, data: TokenData, model: PEForCausalLM) -> None:
    """Refuse, before training, an evaluation that would fail after it.

    Raises:
        ValueError: documents are too short for the longest length, or the shortest length is too
            short for a retrieval text.
    """
    lengths = sorted(recipe.evaluation_lengths)
    evaluation_windows(data.test, lengths[-1], recipe.target_tokens, recipe.evaluation_windows)
    longer = lengths_beyond(recipe, model)
    if recipe.fit_temperature and longer:
        evaluation_windows(data.validation, longer[-1], recipe.target_tokens, 1)
    if recipe.retrieval_samples:
        tokenizer = data.load_tokenizer()
        needed = max(text.shortest() for text in texts_of(recipe.retrieval_tasks, tokenizer))
        if lengths[0] < needed:
            raise ValueError(
                f"evaluation_lengths: {lengths[0]} tokens are too few for a retrieval text, which "
                f"takes {needed}; leave that length out, or set retrieval_samples to 0"
            )


def lengths_beyond(recipe: Recipe, model: PEForCausalLM) -> list[int]:
    """Return the evaluation lengths beyond the training context that the encoding can reach."""
    limit, context = max_positions(model), recipe.context_length
    lengths = sorted(recipe.evaluation_lengths)
    return [n for n in lengths if n > context and (limit is None or n <= limit)]


def max_positions(model: PEForCausalLM) -> int | None:
    """Return how many positions the model's encodings have; None for any number."""
    return tightest(model.model.encodings)[0]


def parameter_counts(model: nn.Module) -> dict[str, int]:
    """Return the number of all parameters, a tied head counted once, and of the encoding's."""
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "encoding_parameters": sum(p.numel() for p in _encoding_parameters(model)),
    }


def _encoding_parameters(model: nn.Module) -> set[nn.Parameter]:
    return {p for m in model.modules() if isinstance(m, Encoding) for p in m.parameters()}
