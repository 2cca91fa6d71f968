"""An encoding that a speed run measures twice: CoPE, and CoPE that counts to 64."""

from __future__ import annotations

from typing import Any

import pytest
import speed_records
import torch

from pe.speed import rig, tables
from pe.speed.names import members
from pe.speed.record import Speed

cells, plan = rig("cell"), rig("plan")
measure_cell = cells.measure_cell
Cell, all_encodings, order, settings = plan.Cell, plan.all_encodings, plan.order, plan.settings
GIVEN: dict[str, Any] = {
    "recipe": "demo", "tokens": 32, "peers": (), "compiled": False, "lengths": (16,),
    "modes": ("train",), "encodings": ("cope@64", "cope"),
}  # fmt: skip


def test_both_are_planned_side_by_side() -> None:
    assert "cope@64" in all_encodings()
    assert [c.system for c in order(settings(**GIVEN))] == ["nope", "cope@64", "cope"]
    assert not plan.same_graph_as_rope("cope@64")
    with pytest.raises(ValueError, match="unknown encoding 'cope@63'"):
        settings(**(GIVEN | {"encodings": ("cope@63",)}))


def test_each_counts_as_far_as_its_name_says(
    monkeypatch: pytest.MonkeyPatch, tiny_speed: None
) -> None:
    counted, build = [], cells.build

    def watched(name: str, *rest: Any) -> Any:
        system = build(name, *rest)
        counted.append((name, [e.npos for e in system.model.model.encodings]))
        return system

    monkeypatch.setattr(cells, "build", watched)
    for system in ("cope", "cope@64"):
        row = measure_cell(Cell(system, "train", 16, 2), settings(**GIVEN), torch.device("cpu"))
        assert (row["system"], row["reason"]) == (system, None)
    assert counted == [("cope", [17, 17]), ("cope@64", [64, 64])]


def test_the_second_is_shown_beside_the_first() -> None:
    family, missing = "cope", "*Not asked of this record: CoPE, counting to 64.*"
    record = speed_records.record()
    assert tables.costs(Speed(record), members(family)).endswith(missing)
    assert "counting" not in tables.overview(Speed(record))
    record["settings"]["systems"].append("cope@64")
    for length, rate in speed_records.NOPE.items():
        record["cells"].append(speed_records.row("cope@64", length, 0.1 * rate))
    found = Speed(record)
    shown = speed_records.squeezed(tables.costs(found, members(family)))
    assert missing not in shown
    rows = [row.split(" | ")[0] for row in shown.splitlines()[2:]]
    assert rows == ["| CoPE", "| CoPE, counting to 64"]
    assert "| CoPE, counting to 64 | 180 k (0.10) | 80.0 k (0.10) |" in speed_records.squeezed(
        tables.overview(found)
    )
