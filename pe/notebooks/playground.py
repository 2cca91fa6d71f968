"""The playground: compare encodings on a task with controls and live curves.

`notebooks/playground.ipynb` shows it in Jupyter, and ``voila notebooks/playground.ipynb`` shows it
as a web page. A wrong setting is explained in a sentence below the buttons. Training runs in a
thread, so that the stop button works. Figures are drawn under a lock, because all threads share
matplotlib's settings.
"""

from __future__ import annotations

import html
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import ipywidgets as widgets
from matplotlib.figure import Figure

from pe import figures
from pe.encodings import about as about_encoding
from pe.encodings import list_encodings
from pe.figures import attention as attention_figures
from pe.figures import tasks as pictures
from pe.notebooks.page import shown
from pe.notebooks.parameters import configure_tasks
from pe.notebooks.tasks_page import EXAMPLE_SEED, floors, short_example
from pe.results.quantities import label
from pe.runs.models import TaskRecord
from pe.tasks import about, names, task
from pe.tasks.measure import summary
from pe.tasks.measure.cost import refuse_too_large, step_cost
from pe.tasks.measure.record import Experiment, TaskRun
from pe.training.progress import duration

REDRAW_SECONDS = 0.8
MOST_SYMBOLS = 60
"""Symbols of the example that are shown."""
MOST_SEEDS = 1000
MOST_STEP_SECONDS = 60.0
"""The most time that a step may take by estimate, because the stop button works between steps."""
EXAMPLES = 5
"""Number of examples to choose from for the attention map."""
NOTHING_TRAINED = "Nothing has been trained here yet."
START = "<p>Choose a task, encodings and sizes, and press <b>Train</b>. Results appear here.</p>"
STYLE = """<style>
.pe-playground .widget-html-content {line-height: 1.4; overflow-x: auto}
.pe-playground .widget-html-content svg {max-width: 100%; height: auto}
.pe-playground .pe-map svg {max-width: none}
.pe-playground td, .pe-playground th {padding: 2px 6px; text-align: right; line-height: 1.3}
.pe-playground .pe-example td {font-family: monospace; padding: 1px 4px}
@media (max-width: 600px) {
  .pe-playground .lm-TabBar-tab {flex: 0 1 auto; padding: 0 5px; font-size: 12px}
}
</style>"""
"""Figures shrink to the width of a phone, and tables scroll in their own box."""


class Playground:
    """Controls and results. `view` is the widget to display.

    Attributes:
        controls: the widgets of the settings, by name.
        records: the records of the encodings that are done, in order.
    """

    def __init__(self) -> None:
        self.records: list[TaskRecord] = []
        self._models: dict[str, Any] = {}
        self._run: TaskRun | None = None
        self._stop = threading.Event()
        self._drawing = threading.Lock()
        self._thread: threading.Thread | None = None
        wide = {"description_width": "7em"}
        box = widgets.Layout(width="23em", max_width="98%")

        def number(value: int, name: str) -> widgets.IntText:
            return widgets.IntText(value=value, description=name, style=wide, layout=box)

        def text(value: str, name: str) -> widgets.Text:
            return widgets.Text(value=value, description=name, style=wide, layout=box)

        self.controls: dict[str, Any] = {
            "task": widgets.Dropdown(
                options=[(about(name).title, name) for name in names()],
                value="k_back", description="task", style=wide, layout=box,
            ),
            "k": number(3, "k"),
            "pe": widgets.SelectMultiple(
                options=[(about_encoding(name).title, name) for name in list_encodings()],
                value=("nope", "rope", "alibi"), rows=8, description="encodings", style=wide,
                layout=box,
            ),
            "others": text("", "others"),
            "steps": number(300, "steps"),
            "width": number(64, "width"),
            "layers": number(2, "layers"),
            "heads": number(4, "heads"),
            "batch_size": number(32, "batch"),
            "learning_rates": text("3e-3", "rates"),
            "seeds": number(2, "seeds"),
            "again": widgets.Checkbox(
                value=False, description="train again what is recorded", indent=False, layout=box
            ),
        }  # fmt: skip
        self.controls["others"].placeholder = "rope+alibi; rope, nope"
        self.controls["others"].tooltip = (
            "Sums such as rope+alibi, or schedules of layers such as rope, nope; several with "
            "semicolons between them"
        )
        self.chosen = widgets.HTML(layout=box)
        self.train = widgets.Button(description="Train", button_style="primary", icon="play")
        self.stop = widgets.Button(description="Stop", icon="stop", disabled=True)
        self.message = widgets.HTML()
        self.definition = widgets.HTML()
        self.curves, self.table = widgets.HTML(), widgets.HTML()
        self.by_length, self.by_position = widgets.HTML(), widgets.HTML()
        self.configuration = widgets.Textarea(
            layout=widgets.Layout(width="100%", height="16em"), disabled=False
        )
        self.which = widgets.Dropdown(description="encoding", options=[])
        self.layer = widgets.Dropdown(description="layer", options=[])
        self.head = widgets.Dropdown(description="head", options=[])
        self.example = widgets.Dropdown(
            description="example", options=[(str(i + 1), i) for i in range(EXAMPLES)]
        )
        self.map = widgets.HTML(NOTHING_TRAINED)
        self.map.add_class("pe-map")
        self.curves.value = START
        self.train.on_click(lambda _: self.start())
        self.stop.on_click(lambda _: self._end())
        self.controls["task"].observe(lambda _: self._describe(), "value")
        self.controls["pe"].observe(lambda _: self._list_chosen(), "value")
        for chosen in (self.which, self.layer, self.head, self.example):
            chosen.observe(lambda _: self._draw_attention(), "value")
        self._describe()
        self._list_chosen()
        self.view = self._layout()

    def _layout(self) -> widgets.Widget:
        results = widgets.Tab(
            children=[
                widgets.VBox([self.curves, self.table]),
                self.by_length,
                self.by_position,
                widgets.VBox(
                    [
                        widgets.HBox(
                            [self.which, self.layer, self.head, self.example],
                            layout=widgets.Layout(flex_flow="row wrap"),
                        ),
                        self.map,
                    ]
                ),
                widgets.VBox([widgets.HTML("All settings, to copy:"), self.configuration]),
            ],
            layout=widgets.Layout(min_width="0", flex="1 1 34em"),
        )
        titles = ("Summary", "Length", "Position", "Attention", "Settings")
        for place, name in enumerate(titles):
            results.set_title(place, name)
        controls = list(self.controls.values())
        controls.insert(controls.index(self.controls["pe"]) + 1, self.chosen)
        left = [
            widgets.HTML(STYLE), *controls, widgets.HBox([self.train, self.stop]), self.message,
            self.definition,
        ]  # fmt: skip
        column = widgets.Layout(width="25em", max_width="100%", flex="0 1 25em")
        view = widgets.HBox(
            [widgets.VBox(left, layout=column), results],
            layout=widgets.Layout(flex_flow="row wrap", align_items="flex-start"),
        )
        view.add_class("pe-playground")
        return view

    def _list_chosen(self) -> None:
        """Name the chosen encodings, most of which the list shows only after scrolling."""
        names = ", ".join(map(label, self.controls["pe"].value)) or "none"
        self.chosen.value = (
            f"Chosen: <b>{html.escape(names)}</b>. Hold Ctrl (⌘ on a Mac) to add or remove one."
        )

    def _describe(self) -> None:
        """Describe the chosen task with one example; show ``k`` only if the task has it."""
        name = self.controls["task"].value
        known = about(name)
        self.controls["k"].layout.display = None if "k" in known.options else "none"
        made = task(name)
        low, high = made.train_lengths
        lengths = f"length {low}" if low == high else f"lengths {low} to {high}"
        read, _, answer = made.text(short_example(made)).partition(" -> ")
        rows = "".join(
            f"<tr><th>{head}</th>"
            + "".join(f"<td>{html.escape(word)}</td>" for word in text.split()[:MOST_SYMBOLS])
            + ("<td>…</td>" if len(text.split()) > MOST_SYMBOLS else "")
            + "</tr>"
            for head, text in (("read", read), ("answer", answer))
        )
        self.definition.value = (
            f"<p><b>{html.escape(known.title)}</b>: trained on {lengths}, chance "
            f"{100 * made.chance:.1f}%. A short example, with the answer that is expected at each "
            f"token; _ means none:</p><table class='pe-example'>{rows}</table>"
        )

    def settings(self) -> TaskRun:
        """Return the experiment that the controls describe.

        Raises:
            ValueError: a control has a wrong value.
        """
        values = {name: widget.value for name, widget in self.controls.items()}
        encodings = [*values["pe"], *(w.strip() for w in values["others"].split(";") if w.strip())]
        if not encodings:
            raise ValueError("encodings: choose at least one from the list, or write one")
        if not 1 <= values["seeds"] <= MOST_SEEDS:
            more = f"{MOST_SEEDS:,} or fewer" if values["seeds"] > 0 else "1 or more"
            raise ValueError(
                f"seeds: expected the number of models per encoding, {more}, got "
                f"{values['seeds']:,}"
            )
        if values["steps"] < 1:
            raise ValueError(f"steps: expected 1 or more, got {values['steps']}")
        options = {"k": values["k"]} if "k" in about(values["task"]).options else {}
        run = configure_tasks(
            task=values["task"],
            pe=";".join(encodings) + ";",
            size="small",
            steps=values["steps"],
            width=values["width"],
            layers=values["layers"],
            heads=values["heads"],
            batch_size=values["batch_size"],
            seeds=",".join(map(str, range(values["seeds"]))),
            learning_rates=values["learning_rates"],
            task_options=options,
        )
        if self.controls["again"].value or not run.complete:
            _refuse_expensive(run)
        return run

    def start(self) -> None:
        """Check the settings and train in a thread. If a setting is wrong, only show why."""
        if self._thread is not None and self._thread.is_alive():
            return
        self.train.disabled = True
        self.message.value = "Preparing …"  # loading torch takes seconds the first time
        try:
            run = self.settings()
        except ValueError as error:
            self._show_mistake(error)
            self.train.disabled = False
            return
        assert run.experiment is not None
        self._stop.clear()
        self._run, self.records, self._models = run, [], {}
        self.table.value = self.curves.value = self.by_length.value = self.by_position.value = ""
        self.which.options = []
        self.map.value = NOTHING_TRAINED
        self.stop.disabled = False
        settings = run.experiment.model_dump(mode="json") | {"encodings": run.encodings}
        self.configuration.value = json.dumps(settings, indent=1)
        self._thread = threading.Thread(target=self._work, args=(run,), daemon=True)
        self._thread.start()

    def _end(self) -> None:
        """End the training after this step. The models are then scored and recorded."""
        self._stop.set()
        self.stop.disabled = True
        self.message.value = "Stopping. The models trained so far are scored and recorded …"

    def wait(self) -> None:
        """Wait until the training has ended."""
        if self._thread is not None:
            self._thread.join()

    def _work(self, run: TaskRun) -> None:
        try:
            self._train(run)
        except Exception as error:  # nobody else catches an error of this thread
            self._show_mistake(error)
        finally:
            self.train.disabled, self.stop.disabled = False, True

    def _train(self, run: TaskRun) -> None:
        from pe.tasks.measure.experiment import Stream, measure
        from pe.tasks.measure.many import Many

        experiment = run.experiment
        assert experiment is not None
        made = experiment.make_task()
        stream, steps = Stream(made), experiment.settings.steps
        history: dict[str, list[list[float]]] = {}
        began: dict[str, float] = {}
        last = time.monotonic()
        for pe in run.encodings:
            if self._stop.is_set():
                break

            def on_step(number: int, losses: list[float], pe: str = pe) -> bool:
                nonlocal last
                began.setdefault(pe, time.monotonic())
                history.setdefault(pe, []).append(losses)
                if time.monotonic() - last > REDRAW_SECONDS or number == steps:
                    text = f"{html.escape(label(pe))}: step {number:,} of {steps:,}"
                    if number > 1:  # the first step is slower, and is not counted
                        pace = (time.monotonic() - began[pe]) / (number - 1)
                        text += f", {duration(pace * (steps - number))} left"
                    self.message.value = text
                    self._draw(
                        self.curves, lambda: pictures.live_curves(history, steps, made.chance)
                    )
                    last = time.monotonic()  # after the drawing, which takes longer than steps
                return self._stop.is_set()

            def on_trained(many: Many, pe: str = pe) -> None:
                self._models[pe] = many

            record = measure(
                run, pe, on_step, stream, on_trained, again=self.controls["again"].value
            )
            self.records.append(record)
            if pe in self._models:
                place = [m.learning_rate for m in record.models].index(record.best_rate)
                self._models[pe] = self._models[pe].model(place)
            self._show_results()
        known = len(self.records) - len(self._models)
        old = f"; {known} of them were recorded before and not trained again" if known else ""
        end = "Stopped" if self._stop.is_set() else "Done"
        self.message.value = (
            f"{end}: {len(self.records)} of {len(run.encodings)} encodings are recorded in "
            f"<code>{html.escape(shown(run))}</code>{old}."
        )

    def _show_results(self) -> None:
        from tabulate import tabulate

        heads, lines = summary.rows(self.records)
        plain = [[cell.replace("*", "") for cell in line] for line in lines]
        table = tabulate(plain, heads, tablefmt="html", disable_numparse=True)
        self.table.value = (
            f"{table}<p>Means over seeds, with 95% intervals where there are several. A seed "
            f"solves a split if {100 * summary.SOLVED:g}% of its tokens are right.</p>"
            f"<p>{html.escape(floors(self._experiment().make_task()))}</p>"
        )
        self._draw(self.curves, lambda: pictures.learning_curves(self.records))
        self._draw(self.by_length, lambda: pictures.accuracy_by_length(self.records))
        self._draw(self.by_position, lambda: pictures.accuracy_by_position(self.records))
        _offer(self.which, [(label(pe), pe) for pe in self._models])
        if self._models:
            sizes = self._experiment().settings
            _offer(self.layer, [(str(n + 1), n) for n in range(sizes.layers)])
            _offer(self.head, [(str(n + 1), n) for n in range(sizes.heads)])
            self._draw_attention()
        else:
            self.map.value = (
                "Attention maps need models that were trained in this session, and these were "
                "recorded before. Tick “train again what is recorded” and press Train."
            )

    def _experiment(self) -> Experiment:
        assert self._run is not None
        assert self._run.experiment is not None, "made by configure_tasks"
        return self._run.experiment

    def _draw_attention(self) -> None:
        choice = (self.which.value, self.layer.value, self.head.value, self.example.value)
        if None in choice or self._run is None:
            return
        from pe.evaluation.attention import attention_maps

        pe, layer, head, number = choice
        made = self._experiment().make_task()
        example = made.example(EXAMPLE_SEED, number, "id")
        weights = attention_maps(self._models[pe], example.tokens.tolist())[layer, head].numpy()
        labels = [made.symbols[token] for token in example.tokens]
        title = f"{label(pe)}, layer {layer + 1}, head {head + 1}"
        self._draw(self.map, lambda: attention_figures.one_map(weights, labels, title))

    def _draw(self, place: widgets.HTML, figure: Callable[[], Figure]) -> None:
        with self._drawing:
            place.value = figures.svg(figure())

    def _show_mistake(self, error: Exception) -> None:
        known = isinstance(error, ValueError)
        text = str(error) if known else f"{type(error).__name__}: {error}"
        self.message.value = (
            f"<p style='color:#c0392b' role='alert'>{html.escape(' '.join(text.split()))}</p>"
        )


def _refuse_expensive(run: TaskRun) -> None:
    """Raise ValueError if a training step needs too much memory or time on this device."""
    import torch

    from pe import devices

    experiment = run.experiment
    assert experiment is not None, "made by configure_tasks"
    made, models = experiment.make_task(), experiment.at_once()
    refuse_too_large(made, experiment.settings, models, devices.memory())
    cost = step_cost(made, experiment.settings, models)
    seconds = cost.seconds(devices.choose().type, torch.get_num_threads())
    if seconds > MOST_STEP_SECONDS:
        raise ValueError(
            f"one step of {models:,} models would take about {duration(seconds)} here, and Stop "
            "works between steps only; choose a smaller width, batch or number of layers, or fewer "
            "seeds and rates"
        )


def _offer(choice: widgets.Dropdown, options: list[tuple[str, Any]]) -> None:
    """Replace the options. The chosen one stays if it is still there, else the first is chosen."""
    old, values = choice.value, [value for _, value in options]
    choice.options = options
    if values:
        choice.value = old if old in values else values[0]
