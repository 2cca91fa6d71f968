"""The training loop: prepare a run, load its last checkpoint, do the remaining steps, finish.

An optimizer step is a pure function of the recipe, the step's number and the state that checkpoints
hold, so a run that was killed and resumed ends with the same weights as one that was not. The loop
runs on one device or on many (`pe.training.processes`, or torchrun). Each process takes a part of
every batch, and the loss is divided by the number of targets in the whole batch. So the result
depends on the number of processes and micro-batches only through the random numbers of a step
(dropout, random positions).
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import time
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import (
    DistributedDataParallelKwargs,
    InitProcessGroupKwargs,
    gather_object,
)
from torch import Tensor

from pe import devices
from pe.data import Batches
from pe.data.batches import Batch
from pe.data.needles import NeedleMix
from pe.encodings.core.source import source_hashes
from pe.model import PEForCausalLM
from pe.model.loss import CHUNK_LOGITS, IGNORE
from pe.model.rng import same_draws, seed_step
from pe.runs import Run
from pe.runs.provenance import device_name, hardware, now
from pe.training import checkpoint, sharding, trackers
from pe.training.attention import attention_path
from pe.training.build import (
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
    text_for,
    with_searched_factors,
)
from pe.training.stop import StopSignal

VALIDATION_BATCHES = 8
TIMEOUT = datetime.timedelta(hours=1)
"""How long a process waits for another one, which may be writing a large checkpoint."""


class Trainer:
    """The state of one call of `train`: model, optimizer, batches, metrics and counters.

    A subclass may override `step` to change how an optimizer step is done.

    Raises:
        ValueError: the recipe does not fit the number of processes.
    """

    def __init__(self, run: Run, quiet: bool = False) -> None:
        self.run, self.recipe = run, run.recipe
        self.folder = run.directory / "checkpoints"
        names = trackers.wanted()
        self.accelerator = Accelerator(
            cpu=devices.choose().type == "cpu",
            log_with=names or None,
            project_dir=str(run.directory / "trackers"),
            kwargs_handlers=[
                InitProcessGroupKwargs(timeout=TIMEOUT),
                # Buffers are constants, and a second copy of the gradients is not needed.
                DistributedDataParallelKwargs(
                    broadcast_buffers=False, gradient_as_bucket_view=True
                ),
            ],
        )
        self.device, self.main = self.accelerator.device, self.accelerator.is_main_process
        devices.keep_memory(self.device)
        devices.forget_peak_memory(self.device)  # of a run that this process trained before
        count = self.accelerator.num_processes
        self.windows, self.micro = divided(self.recipe, count)
        self.start = start_of(self.recipe, run.directory.parent)
        self.stream_step = self.start.stream_step if self.start else 0
        self.draws_step = self.start.draws_step if self.start else 0
        self.progress = Progress(enabled=self.main and not quiet)
        names_of_devices = gather_object([device_name(self.device)]) if count > 1 else None
        if self.main:
            run.start(names_of_devices)
        if names:
            trackers.start(self.accelerator, run)

    def go(self) -> None:
        """Prepare the run, load its last checkpoint, do the remaining steps and finish."""
        self._prepare()
        self._resume()
        try:
            with StopSignal() as stop:
                self._steps(stop)
        except BaseException:
            trackers.finish(self.accelerator)  # otherwise their last values would be lost
            raise
        self._finish()

    # The loop

    def _steps(self, stop: StopSignal) -> None:
        """Do the remaining steps; raise Interrupted if a signal asks to stop before the last."""
        r, state = self.recipe, self.state
        first, began = state.step, time.perf_counter()
        if self.start and first == 0:
            self._validate()  # the loss that the change of encoding causes
        self.model.train()
        logged_tokens, logged_at = state.tokens, time.perf_counter()
        while state.step < r.steps:
            lr = learning_rate(r, state.step)
            set_rate(self.optimizer, lr)
            batch = self.train_batches.at(state.step + self.stream_step)
            seed_step(r.seed, state.step + self.draws_step, self.accelerator.process_index)
            self.metrics.add(*self.step(batch))
            state.step += 1
            state.tokens += r.batch_size * r.context_length
            due = state.step == r.steps or state.step % r.checkpoint_every == 0
            stopping = stop.requested(self.accelerator)
            if due or stopping or state.step % r.log_every == 0:
                self.synchronize()  # the device may still compute steps that were launched
                moment = time.perf_counter()
                left = (moment - began) / (state.step - first) * (r.steps - state.step)
                self._log(lr, state.tokens - logged_tokens, moment - logged_at, left)
                logged_tokens, logged_at = state.tokens, time.perf_counter()
            # The speed of training does not include validation and checkpoints.
            logged_at += self._validate_and_save(due or stopping)
            if stopping and state.step < r.steps:
                raise Interrupted(
                    f"stopped after step {state.step} of {r.steps}; the same command goes on from "
                    f"step-{state.step:06d}",
                    stop.name or None,
                )

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Do one optimizer step.

        Args:
            batch: the windows of all processes, of which this one takes its share.

        Returns:
            This process's part of the loss in nats, and the gradient norm before clipping; both
            are scalars on the device, so that nothing waits for them.
        """
        first = self.accelerator.process_index * self.windows
        # Every process has the whole batch, so it can count all targets without communication.
        targets = int((batch.targets != IGNORE).sum()) / self.accelerator.num_processes
        total = torch.zeros((), device=self.device)
        for start in range(first, first + self.windows, self.micro):
            inputs = self._inputs(batch, slice(start, start + self.micro))
            last = start + self.micro == first + self.windows
            with contextlib.nullcontext() if last else self.accelerator.no_sync(self.model):
                with devices.autocast(self.recipe.precision, self.device):
                    # The model is told to divide by 1, as in validation, so that it is compiled
                    # once. Another divisor would lead to a second graph, for any number.
                    loss = self.model(**inputs, num_items_in_batch=1).loss / targets
                self.accelerator.backward(loss)
            total += loss.detach()
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), self.recipe.grad_clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total, sharding.whole(norm.detach())

    def _validate_and_save(self, save: bool) -> float:
        """Validate, and write checkpoints, if that is due after this step.

        Args:
            save: write the run's last checkpoint.

        Returns:
            The seconds that it took.
        """
        r, state = self.recipe, self.state
        validate = r.validate_every and state.step % r.validate_every == 0 and state.step < r.steps
        keep = state.step in (*r.keep_steps, *r.keep_states)
        if not (validate or keep or save):
            return 0.0
        self.synchronize()
        began = time.perf_counter()
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
        return time.perf_counter() - began

    def _inputs(self, batch: Batch, windows: slice) -> dict[str, Tensor]:
        """Return some windows of a batch as the model's arguments, on the device."""
        arrays = {"input_ids": batch.input_ids, "shift_labels": batch.targets}
        if self.recipe.reset_positions:
            arrays["position_ids"] = batch.positions
        if self.recipe.mask_documents:
            arrays["document_ids"] = batch.documents
        tensors = {name: torch.from_numpy(a[windows].copy()) for name, a in arrays.items()}
        if self.device.type == "cuda":
            tensors = {name: t.pin_memory() for name, t in tensors.items()}
        return {name: t.to(self.device, non_blocking=True) for name, t in tensors.items()}

    def synchronize(self) -> None:
        """Wait until the device has finished the steps that were launched."""
        devices.synchronize(self.device)

    def _log(self, lr: float, tokens: int, seconds: float, left: float) -> None:
        """Write and show the line for the steps since the last one.

        Args:
            lr: of the last step. tokens, seconds: of these steps. left: seconds to the run's end.
        """
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
        """Pass values that are not None to the trackers, whose x axis is in tokens."""
        logged = {name: value for name, value in values.items() if value is not None}
        self.accelerator.log(logged, step=self.state.tokens)

    def _last_good(self) -> str:
        saved = checkpoint.checkpoints(self.folder)
        return f"last good checkpoint: {saved[-1]}" if saved else "there is no checkpoint yet"

    def _refuse_broken_weights(self) -> None:
        """Raise NonFiniteLoss if a weight is not finite.

        An update can overflow although loss and gradient of its step were finite.
        """
        parts = map(sharding.local, self.model.parameters())
        finite = torch.stack([torch.isfinite(p).all() for p in parts]).all()
        broken = self.accelerator.reduce((~finite).float(), "sum")  # so all processes agree
        if broken.item() > 0:
            raise NonFiniteLoss(
                f"weights are not finite after step {self.state.step}; {self._last_good()}; "
                "try a lower learning_rate or a longer warmup"
            )

    # Validation

    def _validate(self) -> float:
        """Return the validation loss in nats, and record it; every process computes all of it."""
        state = self.state
        loss = self.metrics.validated(state.step)
        # It is known already if the run was killed after this validation and then resumed.
        if loss is None:
            loss = self._mean_loss(self.validation_batches)
            if self.main:
                self.metrics.validation(state.step, state.tokens, loss)
            self._track({"validation_loss": loss, "validation_perplexity": perplexity(loss)})
        if self.recipe.keep_best:
            self._keep_if_best(loss)
        return loss

    def _keep_if_best(self, loss: float) -> None:
        """Keep the weights of this step if all earlier ones have a larger validation loss."""
        best = self._best()
        better = best is None or round(loss, 6) < best["validation_loss"]
        # The main process decides, because the loss of others may differ by rounding.
        decision = torch.full((), float(self.main and better), device=self.device)
        if self.accelerator.reduce(decision, "sum").item() > 0:
            checkpoint.keep_weights(
                self.accelerator, self.model, self.run.best, self.state, self.data.load_tokenizer()
            )

    def _best(self) -> dict[str, Any] | None:
        """Return step and validation loss of the weights in ``best/``.

        None if there are no such weights, or if the run has to repeat the step they are from.
        """
        if not self.run.best.exists():
            return None
        step = read_state(self.run.best).step
        loss = self.metrics.validated(step)
        return None if loss is None else {"step": step, "validation_loss": loss}

    @torch.no_grad()
    def _mean_loss(self, batches: Batches, first: int = 0) -> float:
        """Return the mean loss in nats over up to `VALIDATION_BATCHES` batches.

        Args:
            first: index of the first batch.
        """
        model = self.accelerator.unwrap_model(self.model)
        model.eval()
        total, count = 0.0, 0
        number = max(1, min(VALIDATION_BATCHES, batches.windows // batches.batch_size))
        for index in range(first, first + number):
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
        """Return the loss on the batches of training text that would come next.

        The windows are new, but the run has read other windows of the same documents. If this loss
        is lower than the validation loss, the model profits from that. None if the run has read all
        of the text.
        """
        batches = self.text_batches
        first = self.state.step + self.stream_step
        if (first + VALIDATION_BATCHES) * batches.batch_size > batches.windows:
            return None
        return self._mean_loss(batches, first)

    # Before the first step

    def _prepare(self) -> None:
        """Make the text, the model, the optimizer, the batches and the metrics."""
        r = self.recipe
        self.progress.show(f"preparing {r.corpus}", last=True)
        with self.accelerator.main_process_first():
            self.data = data = text_for(r, self.progress.show)
        for note in data.notes:
            self.progress.show(f"{r.corpus}: {note}", last=True)
        model = self._initial_model()
        self.config = model.config
        check_evaluation(r, data, model)
        counts = parameter_counts(model)
        layers = layers_shown(model.model, r.context_length)
        if self.main:
            path = attention_path(model, r, self.micro, self.device)
            self.run.update(data=data.summary(), model=counts | {"attention": path})
        if r.activation_checkpointing:
            # Releases of transformers 5 have this method under one of two names.
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
        self.text_batches = Batches(data.train, r.context_length, r.batch_size, r.seed, first)
        self.train_batches = self.text_batches
        if r.retrieval_share:
            self.train_batches = NeedleMix(
                self.text_batches, r.retrieval_share, data.load_tokenizer(), r.retrieval_tasks
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
        """Keep torch.compile from cutting a graph that contains activation checkpoints.

        With several processes it cuts the graph into pieces, so that some gradients are summed
        while others are still computed. It fails at a graph with checkpoints.
        """
        r = self.recipe
        chunked = self.micro * r.context_length * vocab_size > CHUNK_LOGITS
        if self.accelerator.num_processes > 1 and (chunked or r.activation_checkpointing):
            torch._dynamo.config.optimize_ddp = False

    def _initial_model(self) -> PEForCausalLM:
        """Return the model with new weights, or with those of the parent.

        If the run has a checkpoint, it overwrites them later.
        """
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
            return model  # a branch loads its weights with the optimizer, in `_resume`
        return start_model(self.start, recipe)

    def _resume(self) -> None:
        """Load the last checkpoint, or the state in which the first step begins."""
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
        lines = self.run.metric_lines(drop_torn_end=True) if state.step else []
        self.metrics.start_at(state.step, lines)
        if self.main:
            if self._best() is None:  # best/ is empty, or from a step that will be repeated
                checkpoint.discard(self.run.best)
            due = (*self.recipe.keep_steps, *self.recipe.keep_states)
            checkpoint.keep_saved(self.folder, [step for step in due if step <= state.step])
            self.run.begin_session(state.step)
            if state.step == 0:
                self.run.update(sources=source_hashes(self.recipe.pe))

    # After the last step

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
        """Return the entry ``training`` of the record.

        Args:
            validation, unseen: losses in nats.
            memory: GiB, of the process that used most; None if it was not measured.
        """
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
