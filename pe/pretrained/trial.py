"""Put a question to a model that somebody else trained: what does another encoding make of it?

    runs/pretrained/<name>/pretrained.json      settings, the model, one outcome for each variant

The variants are the model ``untouched``, ``adapted`` (`pe.adapt`) and, where steps are asked for,
``trained`` under the new encoding, all by the same `pe.evaluation.scorer.Scorer`. The record is
written after each, and the same command goes on where it stopped.
"""

from __future__ import annotations

import copy
import time
from typing import Any

import torch

import pe
from pe import devices
from pe._quiet import quiet_libraries
from pe.data import Batches, TokenData, prepare
from pe.data.needles import texts_of
from pe.evaluation.retrieval import evaluate_retrieval
from pe.evaluation.scorer import Log, Scorer
from pe.model.loss import CHUNK_LOGITS, summed_loss
from pe.pretrained.adapt import Adapted, read_host
from pe.pretrained.judged import Judged
from pe.pretrained.load import load
from pe.pretrained.record import PretrainedRun
from pe.recipes.recipe import Recipe
from pe.runs import SCHEMA_VERSION
from pe.runs.models import PretrainedSettings
from pe.runs.provenance import code, command, hardware, now, versions
from pe.training.build import build_optimizer, set_rate
from pe.training.metrics import NonFiniteLoss
from pe.training.progress import Progress
from pe.training.schedule import learning_rate
from pe.training.stop import StopSignal

TASKS = ("passkey", "multikey")
"""Retrieval in completion format: the text ends where a model without a chat template goes on."""
MICRO_TOKENS = 16_384
"""Tokens of a training step in one forward and backward pass."""
SAMPLE = 64, 48
"""Tokens of the test split that are continued, and by how many."""


def try_out(run: PretrainedRun, *, quiet: bool = False) -> dict[str, Any]:
    """Judge the variants that are not on record, and return pretrained.json.

    Raises:
        ValueError: the model cannot be read, adapted or scored, or the text is too short.
        RunBusy: another process writes the folder.
    """
    record = run.read()
    if record is not None and record["status"] == "complete":
        return record
    with run.lock():
        return _Trial(run, Progress(enabled=not quiet)).go(record)


def _recipe(settings: PretrainedSettings, config: Any, tokenizer: str, vocabulary: int) -> Recipe:
    """The settings as this package's scorer, batches and optimizer read them."""
    return Recipe(
        name="pretrained", seed=settings.seed, hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers, num_attention_heads=1, num_key_value_heads=1,
        intermediate_size=1, corpus=settings.corpus, tokenizer=tokenizer, vocab_size=vocabulary,
        context_length=settings.lengths[-1], steps=max(1, settings.steps),
        batch_size=settings.batch_size, learning_rate=settings.learning_rate,
        min_learning_rate=settings.learning_rate / 10, warmup_steps=round(0.03 * settings.steps),
        weight_decay=0.0, evaluation_lengths=tuple(settings.lengths),
        target_tokens=settings.target_tokens, evaluation_windows=settings.windows,
    )  # fmt: skip


class _Trial:
    """What one call of `try_out` holds."""

    def __init__(self, run: PretrainedRun, progress: Progress) -> None:
        self.run, self.settings, self.progress = run, run.settings, progress

    def go(self, record: dict[str, Any] | None) -> dict[str, Any]:
        """Load, judge, adapt, judge, train, judge."""
        s = self.settings
        self.progress.show(f"loading {s.model}", last=True)
        self.model, tokenizer = load(self.run.path)
        self.model.to(devices.choose())
        folder = self.run.directory / "tokenizer"
        tokenizer.save_pretrained(folder)
        vocabulary = -(-len(tokenizer) // 8) * 8
        self.recipe = _recipe(
            s, self.model.config.get_text_config(decoder=True), str(folder), vocabulary
        )
        data = prepare(s.corpus, vocabulary, str(folder), on_progress=self.progress.show)
        self.scorer = Scorer(Judged(self.model), data, self.recipe)  # type: ignore[arg-type]
        new = pe.adapt(self.model, s.pe, seed=s.seed, **s.options)
        self.record = record or self._begin(data, new)
        self._judge("untouched", self.model)
        self._judge("adapted", new)
        if s.steps and "trained" not in self.record["outcomes"]:
            self._train(new, data)  # the weights are the untouched model's, too: it is judged
            self._judge("trained", new)
            with quiet_libraries():
                new.save_pretrained(self.run.directory / "checkpoint")
            tokenizer.save_pretrained(self.run.directory / "checkpoint")
        self.record["peak_memory_gib"] = devices.peak_memory(self.model.device)
        self.record |= {"status": "complete", "finished": now()}
        self._write()
        return self.record

    def _begin(self, data: TokenData, new: Any) -> dict[str, Any]:
        training = read_host(self.model).training
        config = new.config.get_text_config(decoder=True)
        return {
            "schema": SCHEMA_VERSION, "created": now(), "finished": None,
            "command": command() or "", "code": code(), "versions": versions(),
            "hardware": hardware(), "study": self.run.study, "run": self.run.name,
            "status": "running", "settings": self.settings.model_dump(mode="json"),
            "data": data.summary() | {"tokenizer": self.settings.model},  # not its path here
            "host": {
                "type": self.model.config.model_type,
                "parameters": sum(p.numel() for p in self.model.parameters()),
                "training_length": training.tokens, "known_from": training.how,
            },
            "windows": len(self.scorer.ends),
            "precision": self.scorer.precision() | {"weights": str(self.model.dtype)[6:]},
            "transformers_settings": None if isinstance(new, Adapted) else config.rope_parameters,
            "outcomes": {}, "training": [], "peak_memory_gib": None,
        }  # fmt: skip

    def _write(self) -> None:
        self.run.write_part("pretrained", self.record)

    def _judge(self, variant: str, model: Any) -> None:
        if variant in self.record["outcomes"]:
            return
        begun, scorer = time.perf_counter(), self.scorer.of(Judged(model))  # type: ignore[arg-type]

        def log(text: str) -> None:
            self.progress.show(f"{variant}: {text}", last=True)

        measures = scorer.perplexities(log=log)
        measures |= self._retrieval(scorer, log)
        measures["sample"] = self._sample(model)
        measures["seconds"] = round(time.perf_counter() - begun, 2)
        self.record["outcomes"][variant] = measures
        self._write()

    def _retrieval(self, scorer: Scorer, log: Log) -> dict[str, Any]:
        """Numbers found, at the lengths that have room for the prompts; or why there are none."""
        if not self.settings.prompts:
            return {"no_needles": "no prompts were asked for"}
        log("looking for hidden numbers")
        some = copy.copy(scorer)
        try:
            least = max(text.shortest() for text in texts_of(TASKS, scorer.data.tokenizer))
        except ValueError as error:  # its tokenizer joins digits
            return {"no_needles": str(error)}
        some.lengths = [n for n in scorer.lengths if n >= least]
        if not some.lengths:
            return {"no_needles": f"prompts take {least} tokens, and no length has as many"}
        return {"no_needles": None, **evaluate_retrieval(some, TASKS, self.settings.prompts)}

    @torch.no_grad()
    def _sample(self, model: Any) -> str:
        """How the first tokens of the test split go on."""
        given, more = SAMPLE
        ids = torch.tensor(self.scorer.split.tokens[:given].astype("int64"), device=model.device)
        tokenizer = self.scorer.data.tokenizer
        with devices.autocast(self.recipe.precision, model.device):
            out = model.generate(
                ids[None], attention_mask=torch.ones_like(ids[None]), max_new_tokens=more,
                do_sample=False, pad_token_id=tokenizer.pad_token_id,
            )  # fmt: skip
        return str(tokenizer.decode(out[0, given:], skip_special_tokens=True))

    def _train(self, model: Any, data: TokenData) -> None:
        """Recalibrate: AdamW on the training split, by a cosine (`pe.training.schedule`).

        Raises:
            NonFiniteLoss: the loss is no number.
            KeyboardInterrupt: a signal asked to stop; nothing of the training is kept.
        """
        r, s, device = self.recipe, self.settings, model.device
        batches = Batches(data.train, s.context_length, s.batch_size, s.seed)
        model.train()
        judged, optimizer = Judged(model), build_optimizer(model, r)
        every, losses = max(1, s.steps // 50), []
        rows = max(1, MICRO_TOKENS // s.context_length)
        chunk = CHUNK_LOGITS if device.type == "cuda" else CHUNK_LOGITS // 16
        self.record["training"] = []
        with StopSignal() as stop:
            for step in range(s.steps):
                if stop.name:
                    raise KeyboardInterrupt(f"stopped by {stop.name}")
                set_rate(optimizer, rate := learning_rate(r, step))
                batch, total = batches.at(step), 0.0
                for first in range(0, s.batch_size, rows):
                    some = slice(first, first + rows)
                    ids = torch.from_numpy(batch.input_ids[some].copy()).to(device)
                    targets = torch.from_numpy(batch.targets[some].copy()).to(device)
                    with devices.autocast(r.precision, device):
                        hidden = judged.model(ids).last_hidden_state.flatten(0, 1)
                        loss = summed_loss(hidden, judged.lm_head.weight, targets.flatten(), chunk)
                        loss = loss / batch.targets.size
                    loss.backward()
                    total += float(loss.detach())
                torch.nn.utils.clip_grad_norm_(model.parameters(), r.grad_clip)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                losses.append(total)
                if (step + 1) % every == 0 or step + 1 == s.steps:
                    mean = sum(losses) / len(losses)
                    if not mean < float("inf"):
                        raise NonFiniteLoss(f"the loss is {mean} after step {step + 1}")
                    line = {"step": step + 1, "loss": round(mean, 6), "learning_rate": rate}
                    self.record["training"].append(line)
                    self.progress.show(f"step {step + 1}/{s.steps}  loss {mean:.3f}")
                    losses = []
        model.eval()
