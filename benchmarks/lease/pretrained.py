"""Pack a pretrained model and tokens for it, unpack them on another machine, and time a step there.

    python pretrained.py pack CACHE CORPUS MODEL PARTS LEASE   here: tokenise, compress, cut
    python pretrained.py warm STUDY CONFIG ARGUMENTS [--mini]  there: time a training step
    python pretrained.py place PARTS CORPUS MODELS             there: join, unpack, dequantise

MODEL is a gguf file or a folder with safetensors. Its config.json goes into LEASE, so that the
training can be compiled and timed with random weights while the parts are being sent. On the other
machine a gguf file is converted once to a folder of float32 safetensors, which each trial reads in
a second or two.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tokens

from pe.data.cache import cache_root, key_of, write_json
from pe.data.corpora import open_corpus
from pe.data.preparation import prepare
from pe.data.tokenizer import plan_tokenizer

TIMED_STEPS = 8
WARM_SECONDS = 240
"""A measurement that takes longer counts as failed."""


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file, or of the files of a folder."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


def _tokenizer(model: Path, folder: Path) -> int:
    """Write the tokenizer as a trial does (`pe.pretrained.trial`), and return its vocabulary."""
    from transformers import AutoTokenizer

    where: dict[str, Any] = {"pretrained_model_name_or_path": str(model)}
    if model.is_file():
        where = {"pretrained_model_name_or_path": str(model.parent), "gguf_file": model.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    tokenizer.save_pretrained(folder)
    return -(-len(tokenizer) // 8) * 8


def pack(cache: str, corpus: str, model: str, parts: str, lease: str) -> None:
    """Pack the tokens of ``corpus`` and the model into ``parts``/0, 1 ..., and describe them."""
    from transformers import AutoConfig

    folder, source = Path(parts), Path(model)
    if not folder.exists():
        with tempfile.TemporaryDirectory() as scratch:
            vocabulary = _tokenizer(source, Path(scratch))
            data = prepare(corpus, vocabulary, scratch, cache=cache, on_progress=print)
        about = {
            "summary": data.summary() | {"tokenizer": source.stem}, "notes": data.notes,
            "model": source.name, "sha256": _digest(source), "vocabulary": vocabulary,
        }  # fmt: skip
        tokens.compress([data.directory, source], folder, json.dumps(about), Path(lease))
    config = folder / "0" / "config"
    if not config.exists():
        where = {"gguf_file": source.name} if source.is_file() else {}
        own = AutoConfig.from_pretrained(source.parent if where else source, **where)
        own.save_pretrained(config)
    shutil.copytree(config, Path(lease) / "config", dirs_exist_ok=True)
    tokens.recut(folder, Path(lease))


def place(parts: str, corpus: str, models: str) -> None:
    """Unpack parts from one folder: the model into ``models``, and tokens into the cache."""
    folder = Path(parts)
    about = json.loads((folder / "about.json").read_text())
    root = cache_root()
    (root / "tokens").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root) as scratch:
        names = tokens.join(folder, Path(scratch))
        made, packed = Path(scratch) / names[0], Path(scratch) / about["model"]
        if _digest(packed) != about["sha256"]:
            raise SystemExit(f"{about['model']} is not the file that was packed")
        name = packed.stem if packed.suffix == ".gguf" else packed.name
        model = _as_folder(packed, Path(models) / name, folder / "config", made / "tokenizer")
        with tempfile.TemporaryDirectory() as written:
            _tokenizer(model, Path(written))
            identity = plan_tokenizer(written, about["vocabulary"]).identity
            fingerprint = about["summary"]["fingerprint"]
            entry = root / "tokens" / key_of(fingerprint, identity)
            shutil.rmtree(entry, ignore_errors=True)
            made.rename(entry)
            source, budget = open_corpus(corpus)
            seen = key_of(source.identity(), budget.tokens, budget.documents)
            known = {"fingerprint": fingerprint, "notes": about["notes"]}
            write_json(root / "seen" / f"{seen}.json", known)
            there = prepare(corpus, about["vocabulary"], written).summary()
    there |= {"tokenizer": name}
    print(json.dumps(there))
    if there != about["summary"] | {"tokenizer": name}:
        raise SystemExit(f"these are not the tokens that were packed: {about['summary']}")


def _as_folder(packed: Path, folder: Path, config: Path, tokenizer: Path) -> Path:
    """Convert a gguf file to float32 safetensors, or copy the folder as it is.

    The configuration and the tokenizer are those that were packed: another version of transformers
    reads other special tokens out of the same gguf file.
    """
    if packed.is_dir():
        return Path(shutil.copytree(packed, folder, dirs_exist_ok=True))
    from safetensors.torch import save_file

    from pe.pretrained.load import load

    model, _ = load(packed)
    for source in (config, tokenizer):
        shutil.copytree(source, folder, dirs_exist_ok=True)
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    weights = {k: v.contiguous() for k, v in model.state_dict().items() if k not in tied}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def warm(study: str, config: str, arguments: str, mini: str = "") -> None:
    """Time a training step compiled and not, each on a card, and write arguments for the study."""
    import torch

    cards = list(range(torch.cuda.device_count())) or [None]
    ways = [("on", cards[0]), ("off", cards[-1])]
    if len(cards) == 1:  # one after the other, so that neither disturbs the other
        pace = {way: _timed(study, config, way, card, mini) for way, card in ways}
    else:
        with ThreadPoolExecutor(2) as pool:
            got = pool.map(lambda one: _timed(study, config, *one, mini), ways)
            pace = {way: seconds for (way, _), seconds in zip(ways, got, strict=True)}
    known = {way: seconds for way, seconds in pace.items() if seconds is not None}
    if not known:
        raise SystemExit("no training step could be timed")
    best = min(known, key=lambda way: known[way])
    Path(arguments).write_text(f"--compile {best} --step-seconds {known[best]:.4f}\n")
    print(Path(arguments).read_text(), flush=True)


def _timed(study: str, config: str, way: str, card: int | None, mini: str) -> float | None:
    """Return the seconds of a step with the slowest of the encodings that are trained.

    None if the measurement failed.
    """
    words = [sys.executable, __file__, "time", study, config, way, *([mini] if mini else [])]
    where = {} if card is None else {"CUDA_VISIBLE_DEVICES": str(card)}
    try:
        done = subprocess.run(
            words, env=os.environ | where, capture_output=True, text=True, timeout=WARM_SECONDS
        )
    except subprocess.TimeoutExpired:
        print(f"compile {way}: not done in {WARM_SECONDS} s", flush=True)
        return None
    print(f"compile {way}: {done.returncode}\n{done.stdout}{done.stderr[-2000:]}", flush=True)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return None if done.returncode else max(line["step_seconds"] for line in lines)


def time_steps(study: str, config: str, way: str, mini: str = "") -> None:
    """Time steps of each trained encoding, with random weights; print a line of JSON for each."""
    import numpy as np
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    import pe
    from pe import devices
    from pe.data import Batches
    from pe.data.shards import Split
    from pe.pretrained.recalibrate import Recalibration
    from pe.pretrained.study import configured, load_study
    from pe.pretrained.trial import recipe_of

    listed = load_study(study, mini=bool(mini))
    own = AutoConfig.from_pretrained(config)
    for name, trial in {t.pe: t for t in listed.runs if t.trained}.items():
        run = configured(listed, trial, config, TIMED_STEPS)
        run.compile = way  # type: ignore[assignment]
        recipe = recipe_of(run, own, "bpe", -(-own.vocab_size // 8) * 8)
        model = AutoModelForCausalLM.from_config(own, dtype=torch.float32).to(devices.choose())
        s = run.settings
        size = s.context_length * s.batch_size * TIMED_STEPS + 1
        drawn = np.random.default_rng(0).integers(0, own.vocab_size, size)
        split = Split(drawn, np.zeros(1, dtype=np.int64), ["drawn"])
        batches = Batches(split, s.context_length, s.batch_size, s.seed)
        with tempfile.TemporaryDirectory() as folder:
            training = Recalibration(pe.adapt(model, name), batches, recipe, Path(folder))
            speed = training.run()
        seconds = sorted(training.seconds)[TIMED_STEPS // 2]
        line = {"pe": name, "step_seconds": seconds, "first": training.seconds[0]} | speed
        line["peak_memory_gib"] = devices.peak_memory(model.device)
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    steps = {"pack": pack, "place": place, "warm": warm, "time": time_steps}
    tokens.run_step(steps, sys.argv[1:], __doc__)
