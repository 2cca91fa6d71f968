"""Divide one model among the processes of a run, with PyTorch's FSDP2 (arXiv:2304.11277).

Each process holds its share of every weight, of every gradient and of the optimizer's state. The
weights of a block are gathered before the block computes and dropped afterwards. Its gradients are
summed over the processes, and each process keeps its share of the sum. Weights are gathered and
gradients summed in float32, so losses equal those of one process up to the order of summation.

PyTorch's `fully_shard` is used instead of Accelerate's plugin, because that refuses processes on a
CPU, where the tests run. A divided weight is a `DTensor`. `whole` and `local` return all or this
process's share of one, and any other tensor unchanged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from pe.model import PEForCausalLM


def shard(
    model: PEForCausalLM, device: torch.device, processes: int, compiled: bool
) -> PEForCausalLM:
    """Divide ``model`` among all processes, on their devices; every process calls this.

    The blocks are gathered one by one. The remaining weights (embeddings, last norm and encodings)
    are gathered once per forward pass, because the tied head needs the embeddings at its end.

    Args:
        compiled: compile each block by itself, so that gathering stays outside the graphs.

    Returns:
        ``model`` itself.

    Raises:
        ValueError: a parameter is a single number, which cannot be divided.
    """
    single = [name for name, parameter in model.named_parameters() if parameter.dim() == 0]
    if single:
        raise ValueError(
            f"fsdp: {', '.join(single)} of {model.config.pe!r} is a single number, which cannot be "
            "divided among processes; leave fsdp out"
        )
    model.to(device)
    mesh = init_device_mesh(device.type, (processes,))
    for block in model.model.layers:
        if compiled:
            block.forward = torch.compile(block.forward)
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def is_sharded(model: nn.Module) -> bool:
    """Return whether `shard` has divided this model."""
    return isinstance(model, FSDPModule)


def reshard(model: nn.Module) -> None:
    """Drop the weights that a forward pass without a backward pass has left gathered."""
    if isinstance(model, FSDPModule):
        model.reshard()


def whole(value: Tensor) -> Tensor:
    """Return all of a divided tensor; every process calls this."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def local(value: Tensor) -> Tensor:
    """Return this process's share of a divided tensor."""
    return value.to_local() if isinstance(value, DTensor) else value


def whole_weights(accelerator: Accelerator, model: nn.Module) -> dict[str, Tensor]:
    """Return the model's whole weights by name; every process calls this.

    For a divided model, only the main process gets them, on its CPU, and a tied weight is among
    them once, as in checkpoint files.
    """
    if not is_sharded(model):
        return accelerator.get_state_dict(model)  # type: ignore[no-any-return]
    ties: dict[str, str] = getattr(model, "_tied_weights_keys", {})
    state = {name: value for name, value in model.state_dict().items() if name not in ties}
    return _gathered(accelerator, state)


def whole_optimizer(accelerator: Accelerator, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the `state_dict` of an undivided optimizer; every process calls this."""
    state = optimizer.state_dict()
    numbers = {key: _gathered(accelerator, values) for key, values in state["state"].items()}
    return state | {"state": numbers}


def _gathered(accelerator: Accelerator, values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gather tensors one by one onto the CPU of the main process; other processes get none."""
    result = {}
    for name, value in values.items():
        gathered = whole(value)
        if accelerator.is_main_process:
            result[name] = gathered.cpu()
    return result


def load_weights(model: nn.Module, path: Path) -> None:
    """Load a divided model from a file of whole weights; every process reads the file.

    Raises:
        ValueError: the names in the file are not those of the model.
    """
    own, values = model.state_dict(), load_file(path)
    shares = {name: _share(value, own[name]) for name, value in values.items() if name in own}
    missing = own.keys() - shares.keys() - set(getattr(model, "_tied_weights_keys", {}))
    strange = values.keys() - own.keys()
    if missing or strange:
        raise ValueError(f"{path} lacks {sorted(missing)} and has {sorted(strange)} instead")
    model.load_state_dict(shares, strict=False)


def load_optimizer(optimizer: torch.optim.Optimizer, path: Path) -> None:
    """Load the optimizer of a divided model from the file of an undivided one."""
    state = torch.load(path, map_location="cpu", weights_only=True)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    shares = {
        index: {
            name: _share(value, parameters[index]) if value.dim() else value
            for name, value in values.items()
        }
        for index, values in state["state"].items()
    }
    optimizer.load_state_dict(state | {"state": shares})


def _share(value: Tensor, like: Tensor) -> Tensor:
    """Return this process's share of ``value``, divided as ``like`` is, without communication."""
    if not isinstance(like, DTensor):
        return value
    value = value.to(device=like.device, dtype=like.dtype)
    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)
