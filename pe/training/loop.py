"""The steps of a run, from its last checkpoint or its start to its end.

One optimizer step is a pure function of the recipe, the step's number and the state in the last
checkpoint, so a run that was killed ends with the same weights as one that was not. Runs on one
device or on many (`pe.training.processes`, or torchrun): each process takes a part of every
batch, and the loss is divided by the target count of the whole batch, so neither processes nor
micro-batches change the result, except through what a step draws (dropout, random positions).
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import shutil
import time
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import (
    DataLoaderConfiguration,
    DistributedDataParallelKwargs,
    InitProcessGroupKwargs,
    gather_object,
)
from torch import Tensor

from pe import devices
from pe.data import Batches, prepare
from pe.data.batches import Batch
from pe.data.needles import NeedleMix
from pe.encodings.core.source import source_hashes
from pe.model import PEForCausalLM
from pe.model.loss import CHUNK_LOGITS, IGNORE
from pe.model.rng import same_draws, seed_step
from pe.runs import Run
from pe.runs.provenance import device_name, hardware, now
from pe.training import checkpoint, sharding, trackers
from pe.training.build import (
    attention_path,
    build_optimizer,
    check_evaluation,
    model_for,
    parameter_counts,
    set_rate,
    start_model,
)
from pe.training.check import divided
from pe.training.flops import flops_per_token, peak_flops
from pe.training.metrics import (
    Metrics,
    NonFiniteLoss,
    layers_shown,
    perplexity,
)
from pe.training.processes import Interrupted
from pe.training.progress import Progress, duration
from pe.training.schedule import learning_rate
from pe.training.start import (
    KEPT,
    TrainState,
    check_text,
    read_state,
    start_of,
    with_searched_factors,
)
from pe.training.stop import StopSignal

VALIDATION_BATCHES = 8
PATIENCE = datetime.timedelta(hours=1)
"""How long a process waits for another, which may be writing a large checkpoint."""


class Trainer:
    """What one call of `train` holds. A subclass may do more, or something else, in `step`."""

    def __init__(self, run: Run, quiet: bool = False) -> None:
        self.run, self.recipe = run, run.recipe
        self.folder = run.directory / "checkpoints"
        names = trackers.wanted()
        self.accelerator = Accelerator(
            cpu=devices.choose().type == "cpu",
            log_with=names or None,
            project_dir=str(run.directory / "trackers"),
            dataloader_config=DataLoaderConfiguration(),
            kwargs_handlers=[
                InitProcessGroupKwargs(timeout=PATIENCE),
                # Buffers are constants, and gradients need no second place.
                DistributedDataParallelKwargs(
                    broadcast_buffers=False, gradient_as_bucket_view=True
                ),
            ],
        )
        self.device, self.main = self.accelerator.device, self.accelerator.is_main_process
        devices.keep_memory(self.device)
        count = self.accelerator.num_processes
        self.windows, self.micro = divided(self.recipe, count)
        self.start = start_of(self.recipe, run.directory.parent)
        self.progress = Progress(enabled=self.main and not quiet)
        every = gather_object([device_name(self.device)]) if count > 1 else None
        if self.main:
            run.start(every)
        if names:
            trackers.start(self.accelerator, run)

    def go(self) -> None:
        """Prepare, resume, train, finish."""
        self._prepare()
        self._resume()
        try:
            with StopSignal() as stop:
                self._steps(stop)
        except BaseException:
            trackers.finish(self.accelerator)  # their last values would be lost
            raise
        self._finish()

    # Before the first step

    def _prepare(self) -> None:
        """Text, model, optimizer, batches and metrics."""
        r = self.recipe
        self.progress.show(f"preparing {r.corpus}", last=True)
        with self.accelerator.main_process_first():
            self.data = data = prepare(
                r.corpus, r.vocab_size, r.tokenizer, separator=r.separator,
                on_progress=self.progress.show,
            )  # fmt: skip
        model = self._initial_model()
        self.config = model.config
        check_evaluation(r, data, model)
        counts = parameter_counts(model)
        layers = layers_shown(model.model, r.context_length)
        if self.main:
            path = {"attention": attention_path(model, r, self.device)}
            self.run.update(data=data.summary(), model=counts | path)
        if r.activation_checkpointing:
            # transformers 5 renamed this method on the way.
            enable = getattr(model, "activation_checkpointing_enable", None)
            (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
        compiled = devices.compiles(r.compile, self.device)
        if r.fsdp:
            self.model = sharding.shard(
                model, self.device, self.accelerator.num_processes, compiled
            )
            self.optimizer = build_optimizer(self.model, r)
        else:
            if compiled:
                model.compile()
                self._keep_graph_whole(data.vocab_size)
            with warnings.catch_warnings():  # torch 2.13 is about to rename an argument of DDP
                warnings.filterwarnings("ignore", ".*forward_sync_buffers", FutureWarning)
                self.model, self.optimizer = self.accelerator.prepare(
                    model, build_optimizer(model, r)
                )
        if self.accelerator.num_processes > 1:
            checkpoint.hold_whole_tensors(self.accelerator, self.model, self.optimizer)
        first = data.end_id if r.first_token else None
        self.train_batches = Batches(data.train, r.context_length, r.batch_size, r.seed, first)
        if r.retrieval_share:
            self.train_batches = NeedleMix(
                self.train_batches, r.retrieval_share, data.load_tokenizer(), r.retrieval_tasks
            )
        self.validation_batches = Batches(
            data.validation, r.context_length, r.batch_size, seed=0, first_token=first
        )
        flops = flops_per_token(counts["parameters"], layers, r.hidden_size, r.context_length)
        peak = peak_flops(hardware()["name"]) if self.device.type == "cuda" else None
        if peak is not None:
            peak *= self.accelerator.num_processes
        self.metrics = Metrics(self.run, self.main, flops, peak)

    def _keep_graph_whole(self, vocab_size: int) -> None:
        """Switch off what torch.compile refuses to do to a graph that computes parts of it twice.

        With several processes it cuts the graph into pieces, so that gradients are added up while
        others are still computed. It cannot cut a graph with checkpoints in it.
        """
        r = self.recipe
        chunked = self.micro * r.context_length * vocab_size > CHUNK_LOGITS
        if self.accelerator.num_processes > 1 and (chunked or r.activation_checkpointing):
            torch._dynamo.config.optimize_ddp = False

    def _initial_model(self) -> PEForCausalLM:
        """Drawn weights, or those of the run to start from. A checkpoint will overwrite them."""
        if self.start is None:
            return model_for(self.recipe, self.data)
        recipe = with_searched_factors(self.recipe, self.start.parent)
        model = model_for(recipe, self.data)
        check_text(
            self.data, self.start.data, self.start.parent.name,
            "start from a run of this text",
        )  # fmt: skip
        if self.main:
            self.run.update(parent=self.start.record())
        if self.start.whole:
            return model  # everything is loaded once model and optimizer are prepared
        return start_model(self.start, recipe, model.config)

    def _resume(self) -> None:
        log = functools.partial(self.progress.show, last=True)
        state = checkpoint.restore(self.accelerator, self.folder, log)
        if state is None:
            state = TrainState(
                data_fingerprint=self.data.fingerprint,
                tokenizer_fingerprint=self.data.tokenizer_fingerprint,
            )
            if self.start and self.start.whole:
                checkpoint.begin_from(self.accelerator, self.start.weights)
        else:
            check_text(
                self.data, state.data, f"{self.run.directory}: its checkpoint",
                "delete the folder or choose another study",
            )  # fmt: skip
        self.state = state
        known = self.run.metric_lines(drop_torn_end=True) if state.step else []
        self.metrics.start_at(state.step, known)
        if self.main:
            if self._best() is None:  # of steps that will be repeated
                shutil.rmtree(self.run.best, ignore_errors=True)
            self.run.begin_session(state.step)
            if state.step == 0:
                self.run.update(sources=source_hashes(self.recipe.pe))

    # Steps

    def _steps(self, stop: StopSignal) -> None:
        r, state = self.recipe, self.state
        first, begun = state.step, time.perf_counter()
        passed = self.start.stream_step if self.start else 0
        drawn = self.start.draws_step if self.start else 0
        if self.start and first == 0:
            self._validate()  # what the change of encoding cost
        self.model.train()
        logged_tokens, since = state.tokens, time.perf_counter()
        while state.step < r.steps:
            lr = learning_rate(r, state.step)
            set_rate(self.optimizer, lr)
            batch = self.train_batches.at(state.step + passed)
            seed_step(r.seed, state.step + drawn, self.accelerator.process_index)
            self.metrics.add(*self.step(batch))
            state.step += 1
            state.tokens += r.batch_size * r.context_length
            due = state.step == r.steps or state.step % r.checkpoint_every == 0
            stopping = stop.requested(self.accelerator)
            if due or stopping or state.step % r.log_every == 0:
                self.synchronize()  # or the clock would see the steps launched, not done
                moment = time.perf_counter()
                left = (moment - begun) / (state.step - first) * (r.steps - state.step)
                self._log(lr, state.tokens - logged_tokens, moment - since, left)
                logged_tokens, since = state.tokens, time.perf_counter()
            if self._pause(due or stopping):
                since = time.perf_counter()
            if stopping and state.step < r.steps:
                raise Interrupted(
                    f"stopped after step {state.step} of {r.steps}; the same command goes on from "
                    f"step-{state.step:06d}",
                    stop.name or None,
                )

    def _pause(self, save: bool) -> bool:
        """Validate, keep and save what is due after this step; whether anything was."""
        r, state = self.recipe, self.state
        validate = r.validate_every and state.step % r.validate_every == 0 and state.step < r.steps
        keep = state.step in (*r.keep_steps, *r.keep_states)
        if validate:
            self._validate()
        if keep or save:
            self._refuse_broken_weights()
        if state.step in r.keep_states:
            checkpoint.save(self.accelerator, self.folder, state, self.config, keep=True)
        elif keep:
            final = self.folder / KEPT / f"step-{state.step:06d}"
            checkpoint.keep_weights(self.accelerator, self.model, final, state)
        if save:
            checkpoint.save(self.accelerator, self.folder, state, self.config, keep=False)
        return bool(validate or keep or save)

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """One optimizer step; returns loss and gradient norm, still on the device."""
        first = self.accelerator.process_index * self.windows
        # Every process knows the whole batch, so none has to ask how many targets there are.
        targets = int((batch.targets != IGNORE).sum()) / self.accelerator.num_processes
        total = torch.zeros((), device=self.device)
        for start in range(first, first + self.windows, self.micro):
            inputs = self._inputs(batch, slice(start, start + self.micro))
            last = start + self.micro == first + self.windows
            with contextlib.nullcontext() if last else self.accelerator.no_sync(self.model):
                with devices.autocast(self.recipe.precision, self.device):
                    # Divided here: in the model, two divisors (this and validation's 1) would be
                    # two graphs, the second of them compiled for any number.
                    loss = self.model(**inputs, num_items_in_batch=1).loss / targets
                self.accelerator.backward(loss)
            total += loss.detach()
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), self.recipe.grad_clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total, sharding.whole(norm.detach())

    def synchronize(self) -> None:
        """Wait until the device has finished the steps that were launched."""
        devices.synchronize(self.device)

    def _inputs(self, batch: Batch, some: slice) -> dict[str, Tensor]:
        arrays = {"input_ids": batch.input_ids, "shift_labels": batch.targets}
        if self.recipe.reset_positions:
            arrays["position_ids"] = batch.positions
        if self.recipe.mask_documents:
            arrays["document_ids"] = batch.documents
        tensors = {name: torch.from_numpy(a[some].copy()) for name, a in arrays.items()}
        if self.device.type == "cuda":
            tensors = {name: t.pin_memory() for name, t in tensors.items()}
        return {name: t.to(self.device, non_blocking=True) for name, t in tensors.items()}

    def _log(self, lr: float, tokens: int, seconds: float, left: float) -> None:
        """Write down and show the steps since the last time; ``left`` in seconds to the end."""
        state, steps = self.state, self.recipe.steps
        mean = functools.partial(self.accelerator.reduce, reduction="mean")
        line = self.metrics.flush(
            state.step, state.tokens, lr, tokens, seconds, mean, self._last_good()
        )
        state.seconds += line["seconds"]
        self._track(line)
        self.progress.show(
            f"step {state.step}/{steps}  loss {line['loss']:.3f}  "
            f"{line['tokens_per_second']:,.0f} tokens/s  {duration(left)} left",
            last=state.step == steps,
        )

    def _track(self, values: Mapping[str, Any]) -> None:
        """Give trackers what is known; their x axis is in tokens."""
        known = {name: value for name, value in values.items() if value is not None}
        self.accelerator.log(known, step=self.state.tokens)

    def _last_good(self) -> str:
        saved = checkpoint.checkpoints(self.folder)
        return f"last good checkpoint: {saved[-1]}" if saved else "there is no checkpoint yet"

    def _refuse_broken_weights(self) -> None:
        """An update can overflow although its loss and gradient were numbers."""
        parts = map(sharding.local, self.model.parameters())
        finite = torch.stack([torch.isfinite(p).all() for p in parts]).all()
        broken = self.accelerator.reduce((~finite).float(), "sum")  # the same answer everywhere
        if broken.item() > 0:
            raise NonFiniteLoss(
                f"weights are not finite after step {self.state.step}; {self._last_good()}; "
                "try a lower learning_rate or a longer warmup"
            )

    # Validation and the end

    def _validate(self) -> float:
        """Validation loss, written down once; every process computes all of it."""
        state = self.state
        loss = self.metrics.validated(state.step)
        if loss is None:  # else it was written by a process that was killed before it went on
            loss = self._mean_loss(self.validation_batches)
            if self.main:
                self.metrics.validation(state.step, state.tokens, loss)
            self._track({"validation_loss": loss, "validation_perplexity": perplexity(loss)})
        if self.recipe.keep_best:
            self._keep_if_best(loss)
        return loss

    def _keep_if_best(self, loss: float) -> None:
        """Keep the weights of this step if no earlier ones have a validation loss as small."""
        best = self._best()
        better = best is None or round(loss, 6) < best["validation_loss"]
        # The main process decides: in others the loss may differ by rounding.
        decision = torch.full((), float(self.main and better), device=self.device)
        if self.accelerator.reduce(decision, "sum").item() > 0:
            checkpoint.keep_weights(
                self.accelerator, self.model, self.run.best, self.state, self.data.load_tokenizer()
            )

    def _best(self) -> dict[str, Any] | None:
        """Step and validation loss of the weights in ``best/``, if this run has come that far."""
        if not self.run.best.exists():
            return None
        step = read_state(self.run.best).step
        loss = self.metrics.validated(step)
        return None if loss is None else {"step": step, "validation_loss": loss}

    @torch.no_grad()
    def _mean_loss(self, batches: Batches, first: int = 0) -> float:
        """Mean loss of some batches, beginning with this one; the model is left training."""
        model = self.accelerator.unwrap_model(self.model)
        model.eval()
        total, count = 0.0, 0
        some = max(1, min(VALIDATION_BATCHES, batches.windows // batches.batch_size))
        for index in range(first, first + some):
            batch = batches.at(index)
            for start in range(0, batches.batch_size, self.micro):
                inputs = self._inputs(batch, slice(start, start + self.micro))
                with (
                    devices.autocast(self.recipe.precision, self.device),
                    same_draws(self.device),
                ):
                    total += float(model(**inputs, num_items_in_batch=1).loss)
                count += int((inputs["shift_labels"] != IGNORE).sum())
        model.train()
        sharding.reshard(model)
        return total / count

    def _unseen_loss(self) -> float | None:
        """Loss on the next batches of training text: new windows of documents already met.

        Where it is lower than the validation loss, the model profits from having read other windows
        of the same documents. None once the text has been gone through.
        """
        r = self.recipe
        batches = Batches(
            self.data.train, r.context_length, r.batch_size, r.seed,
            self.data.end_id if r.first_token else None,
        )  # fmt: skip
        first = self.state.step + (self.start.stream_step if self.start else 0)
        if (first + VALIDATION_BATCHES) * r.batch_size > batches.windows:
            return None
        return self._mean_loss(batches, first)

    def _finish(self) -> None:
        """Save model and tokenizer, and declare the run complete."""
        validation, unseen = self._validate(), self._unseen_loss()
        weights = sharding.whole_weights(self.accelerator, self.model)
        memory = devices.peak_memory(self.device)
        if self.accelerator.num_processes > 1 and memory is not None:
            memory = max(gather_object([memory]))
        self.accelerator.end_training()
        if not self.main:
            return
        training = self._summary(validation, unseen, memory)
        with checkpoint.writing_weights(self.run.checkpoint):
            model = self.accelerator.unwrap_model(self.model)
            model.save_pretrained(self.run.checkpoint, state_dict=weights)
            self.data.load_tokenizer().save_pretrained(self.run.checkpoint)
        self.run.update(status="complete", reason=None, finished=now(), training=training)

    def _summary(
        self, validation: float, unseen: float | None, memory: float | None
    ) -> dict[str, Any]:
        """The ``training`` part of the record; ``memory`` in GiB, of the process that took most."""
        state, metrics = self.state, self.metrics
        trained = state.step > 0
        return {
            "steps": state.step,
            "tokens": state.tokens,
            "passes": round(state.tokens / len(self.data.train.tokens), 4),
            "wall_seconds": round(state.seconds, 2),
            "tokens_per_second": round(metrics.speed(), 1) if trained else None,
            "mfu": metrics.mfu() if trained else None,
            "peak_memory_gib": None if memory is None else round(memory, 3),
            "final_loss": round(metrics.final_loss(state.step), 6) if trained else None,
            "validation_loss": round(validation, 6),
            **({} if unseen is None else {"unseen_loss": round(unseen, 6)}),
            "resumes": state.resumes,
            **({"best": self._best()} if self.recipe.keep_best else {}),
        }
