"""Train a run, or go on with one that stopped, and write its record.

One optimizer step is a pure function of the recipe, the step's number and the state in the last
checkpoint, so a run that was killed ends with the same weights as one that was not. Runs on one
device or on many: with ``accelerate launch`` or ``torchrun`` each process takes a part of every
batch, and the loss is divided by the target count of the whole batch, so neither processes nor
micro-batches change the result.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch import Tensor

from pe.data import Batches, TokenData, prepare
from pe.data.batches import Batch
from pe.data.retrieval import RetrievalMix
from pe.model import PEForCausalLM
from pe.model.loss import IGNORE
from pe.model.rng import seed_step
from pe.runs import Run, RunError
from pe.runs.provenance import hardware
from pe.training import checkpoint, trackers
from pe.training.build import (
    attention_path,
    autocast,
    build_optimizer,
    model_for,
    parameter_counts,
    set_rate,
    start_model,
)
from pe.training.checkpoint import TrainState
from pe.training.deterministic import deterministic
from pe.training.finish import finish, summary
from pe.training.flops import flops_per_token, peak_flops
from pe.training.metrics import Metrics, NonFiniteLoss
from pe.training.progress import Progress, duration
from pe.training.schedule import learning_rate
from pe.training.signals import Interrupted, StopSignal
from pe.training.start import start_of
from pe.training.validation import validation_loss


def train(run: Run, *, quiet: bool = False) -> Run:
    """Train ``run`` to the end of its recipe; a complete run returns at once.

    Raises:
        RunBusy: another process holds the run's folder.
        NonFiniteLoss: the loss became NaN or infinite; names the last good checkpoint.
        RunError: the folder holds another configuration, or no checkpoint of it can be read.
        Interrupted: a SIGTERM or SIGINT arrived; a checkpoint was written first.
        ValueError: the recipe does not fit the machine or the corpus.
    """
    if run.exists():
        record = run.read()
        if record["config_hash"] != run.recipe.config_hash():
            raise RunError(
                f"{run.directory} holds a run of another configuration ({record['config_hash']}, "
                f"not {run.recipe.config_hash()}); choose another folder"
            )
        if record["status"] == "complete":
            return run
    main = int(os.environ.get("RANK", "0")) == 0
    with run.lock() if main else contextlib.nullcontext():
        try:
            with deterministic(run.recipe.deterministic):
                _Training(run, quiet).go()
        except Interrupted as stop:
            if main:
                run.fail(str(stop), "interrupted", stop.signal or None)
            raise
        except KeyboardInterrupt:
            if main:
                run.fail("stopped before or after its steps", "interrupted", "SIGINT")
            raise
        except BaseException as error:
            if main:
                run.fail(f"{type(error).__name__}: {error}")
            raise
    return run


class _Training:
    """What one call of `train` holds."""

    def __init__(self, run: Run, quiet: bool) -> None:
        self.run, self.recipe = run, run.recipe
        self.folder = run.directory / "checkpoints"
        names = trackers.wanted()
        self.accelerator = Accelerator(
            cpu=not torch.cuda.is_available(),
            log_with=names or None,
            project_dir=str(run.directory / "trackers"),
            dataloader_config=DataLoaderConfiguration(),
        )
        self.device, self.main = self.accelerator.device, self.accelerator.is_main_process
        processes = self.accelerator.num_processes
        if self.recipe.batch_size % processes:
            raise ValueError(
                f"batch_size {self.recipe.batch_size} does not divide among {processes} processes"
            )
        self.rows = self.recipe.batch_size // processes
        self.micro = self.recipe.micro_batch_size or self.rows
        if self.rows % self.micro:
            raise ValueError(
                f"micro_batch_size {self.micro} does not divide the {self.rows} windows that each "
                f"of {processes} processes gets"
            )
        self.start = start_of(self.recipe, run.directory.parent)
        self.progress = Progress(enabled=self.main and not quiet)
        if self.main:
            self.run.start()
        if names:
            trackers.start(self.accelerator, run)

    def go(self) -> None:
        """Prepare, resume, train, finish."""
        self.progress.show(f"preparing {self.recipe.corpus}", last=True)
        with self.accelerator.main_process_first():
            data = prepare(self.recipe.corpus, self.recipe.vocab_size, self.recipe.tokenizer)
        model = self._initial_model(data)
        self.config = model.config
        counts = parameter_counts(model)
        if self.main:
            path = {"attention": attention_path(model, self.recipe, self.device)}
            self.run.update(data=data.summary(), model=counts | path)
        if self.recipe.compile == "on" or (
            self.recipe.compile == "auto" and self.device.type == "cuda"
        ):
            model.compile()
        optimizer = build_optimizer(model, self.recipe)
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        r = self.recipe
        self.train_batches = Batches(data.train, r.context_length, r.batch_size, r.seed)
        if r.retrieval_share:
            self.train_batches = RetrievalMix(
                self.train_batches, r.retrieval_share, data.load_tokenizer()
            )
        self.validation_batches = Batches(data.validation, r.context_length, r.batch_size, seed=0)
        flops = flops_per_token(
            counts["parameters"], r.num_hidden_layers, r.hidden_size, r.context_length
        )
        peak = peak_flops(hardware()["name"]) if self.device.type == "cuda" else None
        if peak is not None:
            peak *= self.accelerator.num_processes
        self.metrics = Metrics(self.run, self.main, flops, peak)
        state = self._resume(data)
        if self.main:
            self.run.begin_session(state.step)
        try:
            with StopSignal() as stop:
                self._steps(state, stop)
        except BaseException:
            trackers.finish(self.accelerator)  # their last values would be lost
            raise
        self._finish(state, data)

    def _initial_model(self, data: TokenData) -> PEForCausalLM:
        """Drawn weights, or those of the run to start from. A checkpoint will overwrite them."""
        model = model_for(self.recipe, data)
        if self.start is None:
            return model
        if self.start.fingerprint != data.fingerprint:
            raise RunError(
                f"{self.start.parent.name} was trained on data {self.start.fingerprint}, and "
                f"{self.recipe.corpus!r} is now {data.fingerprint}; start from a run of this text"
            )
        if self.main:
            self.run.update(parent=self.start.record())
        if self.start.whole:
            return model  # everything is loaded once model and optimizer are prepared
        return start_model(self.start, self.recipe, model.config)

    def _resume(self, data: TokenData) -> TrainState:
        state = checkpoint.restore(
            self.accelerator,
            self.folder,
            lambda text: self.progress.show(text, last=True),
        )
        if state is None:
            state = TrainState(data_fingerprint=data.fingerprint)
            if self.start and self.start.whole:
                checkpoint.begin_from(self.accelerator, self.start.weights)
        elif state.data_fingerprint != data.fingerprint:
            raise RunError(
                f"{self.run.directory}: its checkpoint was trained on data "
                f"{state.data_fingerprint}, and {self.recipe.corpus!r} is now {data.fingerprint}; "
                "delete the folder or choose another study"
            )
        known = self.run.metric_lines(drop_torn_end=True) if state.step else []
        self.metrics.start_at(state.step, known)
        return state

    def _steps(self, state: TrainState, stop: StopSignal) -> None:
        r = self.recipe
        first, tokens_before, begun = state.step, state.tokens, time.perf_counter()
        base_seconds, since = state.seconds, time.perf_counter()
        passed = self.start.stream_step if self.start else 0
        drawn = self.start.draws_step if self.start else 0
        if self.start and first == 0:  # what the change of encoding cost
            self._validate(0)
            since = time.perf_counter()
        self.model.train()
        while state.step < r.steps:
            lr = learning_rate(r, state.step)
            set_rate(self.optimizer, lr)
            batch = self.train_batches.at(state.step + passed)
            seed_step(r.seed, state.step + drawn, self.accelerator.process_index)
            loss, norm = self._step(batch)
            self.metrics.add(loss, norm)
            state.step += 1
            state.tokens += r.batch_size * r.context_length
            due = state.step == r.steps or state.step % r.checkpoint_every == 0
            stopping = stop.requested(self.accelerator)
            if due or stopping or state.step % r.log_every == 0:
                self._wait_for_device()  # or the clock would see the steps launched, not done
                line = self._flush(state, lr, time.perf_counter() - since, tokens_before)
                base_seconds += line["seconds"]
                state.seconds, tokens_before = base_seconds, state.tokens
                left = (time.perf_counter() - begun) / (state.step - first)
                self._report(state, line, left * (r.steps - state.step))
                since = time.perf_counter()
            if r.validate_every and state.step % r.validate_every == 0 and state.step < r.steps:
                self._validate(state.step)
                since = time.perf_counter()
            if state.step in (*r.keep_steps, *r.keep_states):
                self._refuse_broken_weights(state.step)
                if state.step in r.keep_states:
                    checkpoint.keep_all(self.accelerator, self.folder, state, self.config)
                else:
                    checkpoint.keep(self.accelerator, self.model, self.folder, state)
                since = time.perf_counter()
            if due or stopping:
                self._refuse_broken_weights(state.step)
                saved = checkpoint.save(self.accelerator, self.folder, state, self.config)
                since = time.perf_counter()
                if stopping and state.step < r.steps:
                    raise Interrupted(
                        f"stopped after step {state.step} of {r.steps}; the same command goes on "
                        f"from {saved.name}",
                        stop.name,
                    )

    def _flush(
        self, state: TrainState, lr: float, seconds: float, tokens_before: int
    ) -> dict[str, Any]:
        def over_processes(losses: Tensor) -> Tensor:
            return self.accelerator.reduce(losses, "mean")  # type: ignore[no-any-return]

        line = self.metrics.flush(
            state.step,
            lr,
            state.tokens - tokens_before,
            seconds,
            over_processes,
            self._last_good(),
        )
        self.accelerator.log({k: v for k, v in line.items() if v is not None}, step=state.step)
        return line

    def _wait_for_device(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _last_good(self) -> str:
        saved = checkpoint.checkpoints(self.folder)
        return f"last good checkpoint: {saved[-1]}" if saved else "there is no checkpoint yet"

    def _refuse_broken_weights(self, step: int) -> None:
        """An update can overflow although its loss and gradient were numbers."""
        finite = torch.stack([torch.isfinite(p).all() for p in self.model.parameters()]).all()
        broken = self.accelerator.reduce((~finite).float(), "sum")  # the same answer everywhere
        if broken.item() > 0:
            raise NonFiniteLoss(
                f"weights are not finite after step {step}; {self._last_good()}; "
                "try a lower learning_rate or a longer warmup"
            )

    def _step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """One optimizer step; returns loss and gradient norm, still on the device."""
        first = self.accelerator.process_index * self.rows
        # Every process knows the whole batch, so none has to ask how many targets there are.
        targets = int((batch.targets != IGNORE).sum()) / self.accelerator.num_processes
        total = torch.zeros((), device=self.device)
        for start in range(first, first + self.rows, self.micro):
            inputs = self._inputs(batch, slice(start, start + self.micro))
            last = start + self.micro == first + self.rows
            with contextlib.nullcontext() if last else self.accelerator.no_sync(self.model):
                with autocast(self.recipe, self.device):
                    # Divided here: in the model, two divisors (this and validation's 1) would be
                    # two graphs, the second of them compiled for any number.
                    loss = self.model(**inputs, num_items_in_batch=1).loss / targets
                self.accelerator.backward(loss)
            total += loss.detach()
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), self.recipe.grad_clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total, norm.detach()

    def _inputs(self, batch: Batch, rows: slice) -> dict[str, Tensor]:
        arrays = {"input_ids": batch.input_ids, "shift_labels": batch.targets}
        if self.recipe.reset_positions:
            arrays["position_ids"] = batch.positions
        if self.recipe.mask_documents:
            arrays["document_ids"] = batch.documents
        tensors = {name: torch.from_numpy(a[rows].copy()) for name, a in arrays.items()}
        if self.device.type == "cuda":
            tensors = {name: t.pin_memory() for name, t in tensors.items()}
        return {name: t.to(self.device, non_blocking=True) for name, t in tensors.items()}

    def _validate(self, step: int) -> float:
        """Validate, and write it down; every process computes all of it."""
        loss = validation_loss(
            self.accelerator.unwrap_model(self.model),
            self.validation_batches,
            self.micro,
            self._inputs,
            lambda: autocast(self.recipe, self.device),
        )
        if self.main:
            self.metrics.validation(step, loss)
        self.accelerator.log({"validation_loss": loss}, step=step)
        return loss

    def _report(self, state: TrainState, line: dict[str, Any], left: float) -> None:
        """Show where training is; ``left`` is in seconds."""
        steps = self.recipe.steps
        self.progress.show(
            f"step {state.step}/{steps}  loss {line['loss']:.3f}  "
            f"{line['tokens_per_second']:,.0f} tokens/s  {duration(left)} left",
            last=state.step == steps,
        )

    def _finish(self, state: TrainState, data: TokenData) -> None:
        validation = self._validate(state.step)
        weights = self.accelerator.get_state_dict(self.model)
        self.accelerator.end_training()
        if self.main:
            tokens = len(data.train.tokens)
            training = summary(state, self.metrics, tokens, validation, self.device)
            model = self.accelerator.unwrap_model(self.model)
            finish(self.run, model, weights, data, training)
