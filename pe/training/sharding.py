"""One model divided among the processes of a run: PyTorch's FSDP2 (arXiv:2304.11277).

Each process holds its share of every weight, gradient and number of the optimizer. A block's
weights are gathered before it computes and dropped behind it; its gradients are added up over the
processes and each keeps its share. Numbers are gathered and added in float32, so that losses are
those of one process up to the order of sums.

PyTorch's `fully_shard` is used instead of Accelerate's plugin, which refuses processes on a CPU:
there it could not be tested. A weight here is a `DTensor`; `whole` and `local` look inside one, and
return any other tensor as it is.
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

    The blocks are gathered one by one. What is left, embeddings, last norm and encodings, is
    gathered once per forward pass, as the tied head needs the embeddings at both ends.

    Args:
        compiled: compile each block by itself; what gathers its weights stays outside.

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
    """Whether `shard` divided it."""
    return isinstance(model, FSDPModule)


def reshard(model: nn.Module) -> None:
    """Drop what a forward pass without a backward pass has left gathered."""
    if isinstance(model, FSDPModule):
        model.reshard()


def whole(value: Tensor) -> Tensor:
    """All of a tensor of which each process has a share; every process calls this."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def local(value: Tensor) -> Tensor:
    """This process's share of a tensor."""
    return value.to_local() if isinstance(value, DTensor) else value


def whole_weights(accelerator: Accelerator, model: nn.Module) -> dict[str, Tensor]:
    """The model's weights by its own names, all of each; every process calls this.

    Of a divided model they are on the CPU of the main process, and the other processes get none;
    a tied weight is there once, as in files.
    """
    if not is_sharded(model):
        return accelerator.get_state_dict(model)  # type: ignore[no-any-return]
    ties: dict[str, str] = getattr(model, "_tied_weights_keys", {})
    state = {name: value for name, value in model.state_dict().items() if name not in ties}
    return _gathered(accelerator, state)


def whole_optimizer(accelerator: Accelerator, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The optimizer's `state_dict` as one process would have it; every process calls this."""
    state = optimizer.state_dict()
    numbers = {key: _gathered(accelerator, values) for key, values in state["state"].items()}
    return state | {"state": numbers}


def _gathered(accelerator: Accelerator, values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Whole tensors, one after the other, on the CPU of the main process; elsewhere none."""
    result = {}
    for name, value in values.items():
        gathered = whole(value)
        if accelerator.is_main_process:
            result[name] = gathered.cpu()
    return result


def load_weights(model: nn.Module, path: Path) -> None:
    """Give a divided model its shares of the weights in a file, which every process reads.

    Raises:
        ValueError: the file has other names than the model.
    """
    own, values = model.state_dict(), load_file(path)
    shares = {name: _share(value, own[name]) for name, value in values.items() if name in own}
    missing = own.keys() - shares.keys() - set(getattr(model, "_tied_weights_keys", {}))
    strange = values.keys() - own.keys()
    if missing or strange:
        raise ValueError(f"{path} lacks {sorted(missing)} and has {sorted(strange)} instead")
    model.load_state_dict(shares, strict=False)


def load_optimizer(optimizer: torch.optim.Optimizer, path: Path) -> None:
    """Give the optimizer of a divided model its shares of what one process would have."""
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
    """What this process has of ``value``, divided as ``like`` is; nothing is sent."""
    if not isinstance(like, DTensor):
        return value
    value = value.to(device=like.device, dtype=like.dtype)
    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)
