"""Measure what another encoding does to a model that somebody else trained.

    runs/pretrained/<name>/pretrained.json      settings, the model, one outcome for each variant

The variants are the model ``untouched``, ``adapted`` (`pe.adapt`) and, where steps are asked for,
``trained`` under the new encoding. The same `pe.evaluation.scorer.Scorer` measures all of them. The
record is written after each variant, and the same command continues where it was stopped.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from typing import Any

import torch

import pe
from pe import devices
from pe._quiet import quiet_libraries
from pe.data import Batches, TokenData, prepare
from pe.data.needles import texts_of
from pe.evaluation.longrope.search import search_factors
from pe.evaluation.retrieval import evaluate_retrieval
from pe.evaluation.sample import FINITE
from pe.evaluation.scorer import Log, NotFinite, Scorer
from pe.pretrained.adapt import Adapted
from pe.pretrained.explain import host_of
from pe.pretrained.judged import Judged
from pe.pretrained.load import load
from pe.pretrained.read import read
from pe.pretrained.recalibrate import Recalibration
from pe.pretrained.record import PretrainedRun
from pe.recipes.recipe import Recipe
from pe.runs import SCHEMA_VERSION
from pe.runs.provenance import code, command, hardware, now, versions
from pe.training.progress import Progress
from pe.training.start import SEARCHED

SEARCH = {"iterations": 4, "population": 24, "windows": 4, "seed": 0}
"""Sizes of LongRoPE's search, on validation text of the length that the factor reaches."""
TASKS = ("passkey", "multikey")
"""Retrieval in completion format: the text ends where a model without a chat template goes on."""
SAMPLE = 64, 48
"""Tokens of the sample's prompt, which begins the test split, and of its continuation."""


def try_out(run: PretrainedRun, *, quiet: bool = False) -> dict[str, Any]:
    """Measure the variants that are not on record yet, and return pretrained.json.

    Raises:
        ValueError: the model cannot be read, adapted or scored, or the text is too short.
        RunBusy: another process writes the folder.
    """
    record = run.read()
    if record is not None and record["status"] == "complete":
        return record
    with run.lock():
        return _Trial(run, Progress(enabled=not quiet)).go(record)


def recipe_of(run: PretrainedRun, config: Any, tokenizer: str, vocabulary: int) -> Recipe:
    """Return the settings as this package's scorer, batches and optimizer read them."""
    settings = run.settings
    return Recipe(
        name="pretrained", seed=settings.seed, hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers, num_attention_heads=1, num_key_value_heads=1,
        intermediate_size=1, corpus=settings.corpus, tokenizer=tokenizer, vocab_size=vocabulary,
        context_length=settings.lengths[-1], steps=max(1, settings.steps),
        batch_size=settings.batch_size, learning_rate=settings.learning_rate,
        min_learning_rate=settings.learning_rate / 10, warmup_steps=round(0.03 * settings.steps),
        weight_decay=0.0, evaluation_lengths=tuple(settings.lengths),
        target_tokens=settings.target_tokens, evaluation_windows=settings.windows,
        compile=run.compile,
    )  # fmt: skip


def _what_decides(record: Mapping[str, Any], variant: str) -> list[Any]:
    """Return everything on which the outcome of an untrained variant depends."""
    names = ["model", "corpus", "lengths", "windows", "target_tokens", "prompts"]
    names += ["pe", "options", "seed"] if variant == "adapted" else []
    settings = [record["settings"][name] for name in names]
    machine = record["code"]["files"], record["versions"], record["hardware"]["name"]
    data = {name: value for name, value in record["data"].items() if name != "notes"}
    return [*settings, data, record["precision"], *machine]


class _Trial:
    """The state of one call of `try_out`."""

    def __init__(self, run: PretrainedRun, progress: Progress) -> None:
        self.run, self.settings, self.progress = run, run.settings, progress

    def go(self, record: dict[str, Any] | None) -> dict[str, Any]:
        """Load, measure, adapt, measure, train, measure."""
        s = self.settings
        self.progress.show(f"loading {s.model}", last=True)
        self.model, tokenizer = load(self.run.path)
        self.model.to(devices.choose())
        folder = self.run.directory / "tokenizer"
        tokenizer.save_pretrained(folder)
        vocabulary = -(-len(tokenizer) // 8) * 8
        self.recipe = recipe_of(
            self.run, self.model.config.get_text_config(decoder=True), str(folder), vocabulary
        )
        data = prepare(s.corpus, vocabulary, str(folder), on_progress=self.progress.show)
        for note in data.notes:
            self.progress.show(f"{s.corpus}: {note}", last=True)
        self.scorer = Scorer(Judged(self.model), data, self.recipe)  # type: ignore[arg-type]
        new = pe.adapt(self.model, s.pe, seed=s.seed, **self._options(data))
        self.record = record or self._begin(data, new)
        self._judge("untouched", self.model)
        self._judge("adapted", new)
        if s.steps and "trained" not in self.record["outcomes"]:
            # This changes the untouched model's weights too, and that has been measured.
            training = self._train(new, data)
            self._judge("trained", new)
            training.forget()
            with quiet_libraries():
                new.save_pretrained(self.run.directory / "checkpoint")
            tokenizer.save_pretrained(self.run.directory / "checkpoint")
        self.record["peak_memory_gib"] = devices.peak_memory(self.model.device)
        self.record |= {"status": "complete", "finished": now()}
        self._write()
        return self.record

    def _options(self, data: TokenData) -> dict[str, Any]:
        """Return the options of the encoding. If LongRoPE's factors are searched for, search."""
        options = self.settings.options
        if options.get("long_factor") != SEARCHED:
            return options
        known = {key: value for key, value in options.items() if key != "long_factor"}
        if "factor" not in known:
            raise ValueError("long_factor: a search needs the factor as well; state factor")
        longer = pe.adapt(self.model, self.settings.pe, plain=False, **known)
        settings: dict[str, Any] = SEARCH | {
            "pe": self.settings.pe, "factor": float(known["factor"]),
            "magnitude": known.get("magnitude", "su"),
        }  # fmt: skip
        judged: Any = Judged(longer)
        factors = search_factors(
            self.run, judged, data, self.recipe, self.progress, settings, settings.pop("iterations")
        )
        return known | {"long_factor": list(factors)}

    def _begin(self, data: TokenData, new: Any) -> dict[str, Any]:
        training = host_of(read(self.model)).training
        config = new.config.get_text_config(decoder=True)
        return {
            "schema": SCHEMA_VERSION, "created": now(), "finished": None,
            "command": self.run.command or command() or "", "code": code(), "versions": versions(),
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
        if variant != "trained" and (known := self._known(variant)) is not None:
            self.record["outcomes"][variant] = known
            self._write()
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

    def _known(self, variant: str) -> dict[str, Any] | None:
        """Return the outcome of another record of the study if model, text and machine are equal.

        Trials of one model differ in the encoding, and each needs the untouched model's outcome.
        """
        for path in sorted(self.run.directory.parent.glob("*/pretrained.json")):
            other = PretrainedRun(path.parent).read()
            if other is None or other["run"] == self.run.name:
                continue
            outcome = other["outcomes"].get(variant)
            same = _what_decides(other, variant) == _what_decides(self.record, variant)
            if outcome is not None and same:
                taken: dict[str, Any] = {"taken_from": other["run"]} | outcome
                return taken
        return None

    def _retrieval(self, scorer: Scorer, log: Log) -> dict[str, Any]:
        """Measure retrieval at lengths that have room for the prompts, or say why there is none."""
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
    def _sample(self, model: Any) -> str | None:
        """Continue the first tokens of the test split; None if the logits are not finite."""
        prompt, more = SAMPLE
        ids = torch.tensor(self.scorer.split.tokens[:prompt].astype("int64"), device=model.device)
        tokenizer = self.scorer.data.tokenizer
        with devices.autocast(self.recipe.precision, model.device):
            try:
                out = model.generate(
                    ids[None], attention_mask=torch.ones_like(ids[None]), max_new_tokens=more,
                    do_sample=False, pad_token_id=tokenizer.pad_token_id, logits_processor=FINITE,
                )  # fmt: skip
            except NotFinite:
                return None
        return str(tokenizer.decode(out[0, prompt:], skip_special_tokens=True))

    def _train(self, model: Any, data: TokenData) -> Recalibration:
        """Recalibrate on the training split; a stopped training has its state in ``checkpoint``."""
        s = self.settings
        batches = Batches(data.train, s.context_length, s.batch_size, s.seed)

        def line(logged: dict[str, Any]) -> None:
            kept = [old for old in self.record["training"] if old["step"] < logged["step"]]
            self.record["training"] = [*kept, logged]
            self._write()
            self.progress.show(f"step {logged['step']}/{s.steps}  loss {logged['loss']:.3f}")

        training = Recalibration(
            model, batches, self.recipe, self.run.directory / "checkpoint", line
        )
        speed = training.run()
        peak = devices.peak_memory(model.device)
        self.record["training_speed"] = speed | {"peak_memory_gib": peak}
        self._write()
        return training
