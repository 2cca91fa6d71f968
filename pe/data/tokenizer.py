"""The tokenizer: byte-level BPE trained on the training split, or one that exists already.

The trained one works on bytes, so every text can be encoded and decoded without loss. Every digit
is a separate token, so a number of any length consists of the same ten tokens. ``<|endoftext|>``
ends a document and ``<|pad|>`` fills a batch. Training is deterministic.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pe._errors import GUIDE, nearest
from pe.data.cache import log

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

END, PAD = "<|endoftext|>", "<|pad|>"
ENDS = (END, "</s>", "<eos>", "<|end_of_text|>")
"""What may end a document in a tokenizer.json, which does not say which token does."""
SMALLEST = 264
"""The smallest vocabulary: 256 bytes and two special tokens, rounded up to a multiple of 8."""
_ON_THE_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?<!\.json)")
TRAINING_BYTES = 256_000_000
"""The most text that BPE training reads. More would need more memory and hardly change the
vocabulary."""


@dataclass(frozen=True)
class TokenizerPlan:
    """A tokenizer that will be trained, or one that was read."""

    name: str
    """The name in a run's record."""
    identity: tuple[str, ...]
    """What distinguishes it from all others, as a part of the cache's key."""
    vocab_size: int
    """Entries of the model's vocabulary; the tokenizer has at most as many."""
    source: PreTrainedTokenizerFast | None = None
    """The tokenizer that was read; None if one will be trained."""


def plan_tokenizer(tokenizer: str, vocab_size: int) -> TokenizerPlan:
    """Check the request, and read the tokenizer unless it is to be trained.

    Args:
        tokenizer: "bpe", a tokenizer.json, a directory that transformers can read, or owner/name
            on the hub.
        vocab_size: entries of the model's vocabulary. It must be a multiple of 8, because GPUs
            multiply such matrices fastest.

    Raises:
        ValueError: the tokenizer is unknown, or ``vocab_size`` is too small or not a multiple of 8.
    """
    check_tokenizer(tokenizer, vocab_size)
    if tokenizer == "bpe":
        version = importlib.metadata.version("tokenizers")
        return TokenizerPlan(f"bpe-{vocab_size}", ("bpe", str(vocab_size), version), vocab_size)
    read = _read(tokenizer)
    entries = max(read.get_vocab().values(), default=-1) + 1  # ids may have gaps
    if entries > vocab_size:
        raise ValueError(
            f"tokenizer {tokenizer!r} needs {entries:,} entries (its largest id is "
            f"{entries - 1:,}), more than vocab_size {vocab_size:,}; set vocab_size to "
            f"{-(-entries // 8) * 8} or more"
        )
    if read.eos_token is None:
        raise ValueError(
            f"tokenizer {tokenizer!r} has no end-of-text token (eos_token), which closes a "
            f"document; name one in its tokenizer_config.json, or give a tokenizer.json that has "
            f"one of {', '.join(ENDS)}"
        )
    content = hashlib.sha256(read.backend_tokenizer.to_str().encode()).hexdigest()[:16]
    special = json.dumps(read.special_tokens_map, sort_keys=True, default=str)
    identity = (content, special, str(vocab_size))
    return TokenizerPlan(tokenizer, identity, vocab_size, read)


def check_tokenizer(tokenizer: str, vocab_size: int) -> None:
    """Check as much of the request as can be checked without reading a tokenizer.

    Raises:
        ValueError: the tokenizer is unknown, or ``vocab_size`` is too small or not a multiple of 8.
    """
    if vocab_size % 8:
        near = max(SMALLEST, -(-vocab_size // 8) * 8)
        raise ValueError(
            f"vocab_size is {vocab_size}; it must be a multiple of 8, for example {near}"
        )
    path = Path(tokenizer).expanduser()
    if tokenizer == "bpe":
        if vocab_size < SMALLEST:
            raise ValueError(
                f"vocab_size is {vocab_size}; byte-level BPE needs at least {SMALLEST} "
                "(256 bytes and two special tokens)"
            )
    elif not path.exists() and not _ON_THE_HUB.fullmatch(tokenizer):
        raise ValueError(
            f"unknown tokenizer {tokenizer!r}{nearest(tokenizer, ['bpe'])}: it is not 'bpe', not "
            f"OWNER/NAME on the hub, and no tokenizer.json or directory was found at "
            f"{path.absolute()}; {GUIDE}"
        )


def _read(tokenizer: str) -> PreTrainedTokenizerFast:
    path = Path(tokenizer).expanduser()
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    try:
        if path.is_file():
            read = PreTrainedTokenizerFast(tokenizer_file=str(path))
            known = read.get_vocab()
            read.eos_token = next((end for end in ENDS if end in known), None)
        else:
            read = AutoTokenizer.from_pretrained(str(path) if path.exists() else tokenizer)
    except Exception as error:  # transformers and tokenizers raise errors of many types
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        advice = (
            ""
            if path.exists()
            else (
                f"; nothing is at {path.absolute()} either. Check the network or the path, or use "
                "tokenizer 'bpe', which needs no download"
            )
        )
        raise ValueError(
            f"tokenizer {tokenizer!r} could not be read: {reason.rstrip('.')}{advice}"
        ) from error
    if getattr(read, "backend_tokenizer", None) is None:
        raise ValueError(f"tokenizer {tokenizer!r} has no fast version (a tokenizer.json)")
    return read


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Return a byte-level BPE tokenizer of at most ``vocab_size`` tokens, special ones included.

    A warning is logged if the texts have too few repeated pieces to fill the vocabulary.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END, PAD],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    size = tokenizer.get_vocab_size()
    if size < vocab_size:
        log.warning(
            "the training text fills only %s of the %s vocabulary entries; the model's other rows "
            "stay untrained (vocab_size=%d would do)",
            f"{size:,}",
            f"{vocab_size:,}",
            -(-size // 8) * 8,
        )
    return tokenizer


def tokenizer_fingerprint(directory: Path) -> str:
    """Return 16 hex digits of SHA-256 over the names and contents of a saved tokenizer's files."""
    digest = hashlib.sha256()
    for path in sorted(directory.iterdir()):
        digest.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def save_tokenizer(plan: TokenizerPlan, trained: Tokenizer | None, directory: Path) -> None:
    """Write the tokenizer into ``directory``, from which `load_tokenizer` reads it."""
    directory.mkdir()
    if trained is not None:
        # The tokenizer's own `save` raises a bare Exception on a full disk.
        (directory / "tokenizer.json").write_text(trained.to_str(pretty=True), encoding="utf-8")
    elif plan.source is not None:
        plan.source.save_pretrained(directory)


def load_tokenizer(directory: Path, trained: bool) -> PreTrainedTokenizerFast:
    """Read a tokenizer that `save_tokenizer` wrote, as one of transformers.

    It has an end and a padding token. It pads on the left, so that all prompts of a batch end where
    generated text begins.

    Args:
        trained: whether this package has trained it.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if trained:
        return PreTrainedTokenizerFast(
            tokenizer_file=str(directory / "tokenizer.json"),
            eos_token=END,
            pad_token=PAD,
            padding_side="left",
            clean_up_tokenization_spaces=False,
        )
    tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(
        str(directory), padding_side="left"
    )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer
