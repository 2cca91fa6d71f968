"""Laws about types, rounding, saving, and several ways to compute the same function."""

import copy
import tempfile

import torch

from pe.attention import BACKENDS
from pe.conformance.law import Broken, Measure, NotApplicable, law
from pe.conformance.subject import (
    FAR,
    Inputs,
    Subject,
    attended,
    hooks,
    inputs,
    learned,
    same_draw,
    scores,
    tokens,
)
from pe.encodings import encoding
from pe.encodings.core.forms import matrix


# sgl-project/sglang-jax#1472, huggingface/candle#3520: positions and phases in bfloat16.
@law
def precision(subject: Subject, measure: Measure) -> None:
    """float32 logits equal float64 logits, up to position 100,000."""
    enc, positions = subject.build(), subject.reach(FAR)
    case = inputs(len(positions))
    double = copy.deepcopy(enc).double()
    exact = scores(double, case.to(torch.float64), positions)
    measure.close("logits", scores(enc, case, positions), exact, 2e-5, 1e-5)
    with same_draw():
        embedded = double.embed(case.x.double(), positions)
    with same_draw():
        measure.close("embeddings", enc.embed(case.x, positions), embedded, 1e-5, 1e-5)


# huggingface/transformers#29285.
@law
def autocast(subject: Subject, measure: Measure) -> None:
    """Under autocast, phases and biases are still float32."""
    enc, positions = subject.build(), subject.reach(FAR)
    case = inputs(len(positions))
    plain = hooks(enc, case, positions)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = hooks(enc, case, positions)
    for name, value in plain.items():
        if cast[name].dtype != value.dtype:
            raise Broken(f"{name}: {cast[name].dtype} under autocast, {value.dtype} without")
        try:
            measure.close(name, cast[name], value, 1e-6, 1e-6)
        except Broken as broken:
            raise Broken(
                f"{broken}; matrix products round to bfloat16 under autocast, whatever type they "
                "get, unless they are inside torch.autocast(q.device.type, enabled=False)"
            ) from None


# huggingface/transformers#25681: buffers follow .half().
@law
def cast(subject: Subject, measure: Measure) -> None:
    """After .to(bfloat16) or .half() results are rounded and constants are not."""
    for dtype in (torch.bfloat16, torch.float16):
        enc, positions = subject.build(), subject.reach(FAR)
        with torch.no_grad():  # parameters that the cast does not round, so only constants count
            for parameter in enc.parameters():
                parameter.copy_(parameter.to(torch.bfloat16).to(torch.float16))
        case = inputs(len(positions)).to(dtype)
        before = hooks(enc, case.to(torch.float32), positions)
        logits = scores(enc, case.to(torch.float32), positions)
        after = hooks(enc.to(dtype), case, positions)
        if after["keys"].shape != before["keys"].shape:  # the width depends on the type (xPos)
            for results in (before, after):
                del results["queries"], results["keys"]
            rounded = scores(enc, case, positions)
            measure.close(f"logits, {dtype}", rounded.float(), logits.float(), 2e-2, 2e-2)
        for name, value in before.items():
            got = after[name]
            if name in ("bias", "key state") and got.dtype != torch.float32:
                raise Broken(f"{name}: {got.dtype} after .to({dtype}), expected float32")
            # A result in 16 bits is rounded, and one in float32 is not.
            atol, rtol = (1e-5, 1e-5) if got.dtype == torch.float32 else (8e-3, 1e-2)
            measure.close(f"{name}, {dtype}", got.float(), value.float(), atol, rtol)


# huggingface/transformers#45902: constants are uninitialised memory after to_empty.
@law
def meta(subject: Subject, measure: Measure) -> None:
    """Built on the meta device and then loaded, every constant is right."""
    here = subject.build()
    with torch.device("meta"):
        enc = encoding(subject.spec, **subject.arguments)
    tensors = [*enc.named_parameters(), *enc.named_buffers()]
    stray = [name for name, tensor in tensors if not tensor.is_meta]
    if stray:
        raise Broken(f"not on the meta device: {', '.join(stray)}")
    enc.eval().to_empty(device="cpu")
    with torch.no_grad():  # memory that nobody wrote holds anything
        for parameter in enc.parameters():
            parameter.fill_(float("nan"))
    enc.reset_parameters(torch.Generator().manual_seed(0))
    for name, parameter in enc.named_parameters():
        if not parameter.isfinite().all():
            raise Broken(f"{name}: reset_parameters does not write all of it")
    enc.load_state_dict(here.state_dict())
    for name, buffer in here.named_buffers():
        measure.equal(name, enc.get_buffer(name), buffer)
    length = subject.lengths(1, 2 * subject.length)[-1]
    positions, case = torch.arange(length), inputs(length)
    measure.equal("attention", attended(enc, case, positions), attended(here, case, positions))
    measure.equal("embeddings", enc.embed(case.x, positions), here.embed(case.x, positions))


# NVIDIA-NeMo/Automodel#2549: a reloaded model with rounded constants.
@law
def saving(subject: Subject, measure: Measure) -> None:
    """save_pretrained and from_pretrained change no logit, also in bfloat16."""
    from transformers import AutoModelForCausalLM

    from pe._quiet import quiet_libraries

    model = subject.model()
    ids = tokens(2, subject.lengths(1, 2 * subject.length)[-1])
    with tempfile.TemporaryDirectory() as folder, torch.no_grad(), quiet_libraries():
        model.save_pretrained(folder)
        for dtype in (torch.float32, torch.bfloat16):
            again = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
            with same_draw():
                want = model.to(dtype)(ids, use_cache=False).logits
            with same_draw():
                measure.equal(f"logits, {dtype}", again(ids, use_cache=False).logits, want)


@law
def form(subject: Subject, measure: Measure) -> None:
    """The bias spec for kernels gives the bias, up to a number per query."""
    enc, length = subject.build(), subject.lengths(1, 15, 33, 140)[-1]
    if not enc.biased or not enc.has_form:
        raise NotApplicable("it has no bias, or only a matrix")
    if enc.random:
        raise NotApplicable("positions are drawn in each call")
    case, positions = inputs(length), torch.arange(length)
    state = enc.key_state(case.x)
    want = enc.bias(case.q, case.k, positions, positions, state)
    assert want is not None
    form = enc.bias_form(length, positions.device, state)
    got = matrix(form, length, case.q, case.k).expand_as(want)
    seen = torch.ones(length, length, dtype=torch.bool).tril()
    got, want = (
        (x - x.diagonal(dim1=-2, dim2=-1)[..., None]).masked_fill(~seen, 0.0) for x in (got, want)
    )
    # FIRE's spec is interpolated; pe.encodings.core.forms.fire gives the error.
    measure.close("bias", got, want, 2e-4, 1e-4)


# Dao-AILab/flash-attention#858: one path ignored ALiBi.
@law
def backends(subject: Subject, measure: Measure) -> None:
    """Each attention backend equals the dense one, forward and backward."""
    enc, length = subject.build(), subject.lengths(1, 15, 33)[-1]
    positions = torch.arange(length)
    own = learned(enc)
    for queries in (length, min(3, length)):
        results = []
        for backend in ("dense", *(name for name in BACKENDS if name != "dense")):
            case = Inputs(*(x.requires_grad_() for x in inputs(length)))
            out = attended(enc, case.last(queries), positions, positions[-queries:], backend)
            wanted = {"queries": case.q, "keys": case.k, "values": case.v, "input": case.x}
            direction = torch.linspace(-1, 1, out.numel()).view(out.shape)
            slopes = torch.autograd.grad(
                (out * direction).sum(), [*wanted.values(), *own.values()], allow_unused=True
            )
            results.append((backend, out, dict(zip((*wanted, *own), slopes, strict=True))))
        (_, want, gradients), *others = results
        for backend, out, slopes_of in others:
            measure.close(backend, out, want, 2e-5, 1e-4)
            for name, gradient in gradients.items():
                if gradient is not None:
                    got = slopes_of[name]
                    got = torch.zeros_like(gradient) if got is None else got
                    measure.close(f"{backend}, gradient of {name}", got, gradient, 2e-4, 1e-3)
