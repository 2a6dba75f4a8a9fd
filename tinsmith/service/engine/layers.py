"""The decoder's operations with hand-written gradients: fewer passes over memory than autograd's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from tinsmith.service.engine.lora import LoraPair
from tinsmith.service.engine.model import LinearWeights

if TYPE_CHECKING:
    from jaxtyping import Float

    Rows = Float[torch.Tensor, "tokens features"]
    Heads = Float[torch.Tensor, "tokens heads head_dim"]

# Which rows use which adapter: (first row, one past the last, pair). Rows in no slice use none.
LoraSlices = Sequence[tuple[int, int, LoraPair]]


def _inverse_rms(x: torch.Tensor, eps: torch.Tensor) -> torch.Tensor:
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.addcmul(eps, norm, norm, value=1 / x.shape[-1]).rsqrt_()


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scale = _inverse_rms(wide, eps)
        ctx.save_for_backward(x, weight, scale)
        return (wide * scale).to(x.dtype).mul_(weight)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (grad,) = grad_outputs
        x, weight, scale = ctx.saved_tensors
        normed = x.float() * scale
        wide = (grad * weight).float()
        mean = (normed * wide).mean(-1, keepdim=True)
        return wide.addcmul_(normed, mean, value=-1).mul_(scale).to(x.dtype), None, None


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: torch.Tensor) -> torch.Tensor:
    """x over its root mean square, in float32, times the weight; eps is a tensor to save operations."""
    if torch.is_grad_enabled() and x.requires_grad:
        return _RmsNorm.apply(x, weight, eps)  # pyright: ignore[reportReturnType]
    if x.dtype == torch.float32:  # a conversion to the same type is not free
        return torch.mul(x, _inverse_rms(x, eps)).mul_(weight)
    wide = x.float()
    return (wide * _inverse_rms(wide, eps)).to(x.dtype).mul_(weight)


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotate(x, cos, sin, 1)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (grad,) = grad_outputs
        cos, sin = ctx.saved_tensors
        return _rotate(grad, cos, sin, -1), None, None  # a rotation's transpose turns back


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, direction: int) -> torch.Tensor:
    swapped = x.roll(x.shape[-1] // 2, dims=-1)
    return torch.mul(x, cos).addcmul_(swapped, sin, value=direction)


def rope(x: Heads, cos: torch.Tensor, sin: torch.Tensor) -> Heads:
    """Rotate the two halves of each head by its position's angle; `sin` is negative in the first half."""
    if torch.is_grad_enabled() and x.requires_grad:
        return _Rope.apply(x, cos, sin)  # pyright: ignore[reportReturnType]
    return _rotate(x, cos, sin, 1)


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        activated = torch.nn.functional.silu(gate)
        ctx.save_for_backward(gate_up, activated)
        return activated * up

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> torch.Tensor:
        (grad,) = grad_outputs
        gate_up, activated = ctx.saved_tensors
        gate, up = gate_up.chunk(2, dim=-1)
        out = torch.empty_like(gate_up)
        d_gate, d_up = out.chunk(2, dim=-1)
        torch.mul(grad, activated, out=d_up)
        torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=d_gate)
        return out


def swiglu(gate_up: Rows) -> Rows:
    """silu(gate) * up, of the two halves of one product."""
    if torch.is_grad_enabled() and gate_up.requires_grad:
        return _SwiGlu.apply(gate_up)  # pyright: ignore[reportReturnType]
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate).mul_(up)


class _LoraLinear(torch.autograd.Function):
    """x @ W + bias + scale * (x @ A) @ B, where the columns of A and W are k matrices side by side."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, linear: LinearWeights, scale: float, *factors: torch.Tensor
    ) -> torch.Tensor:
        a, *bs = factors
        out = plain_linear(x, linear)
        z = x @ a
        _add_products(out, z, bs, scale)
        ctx.save_for_backward(x, z, a, *bs)
        ctx.linear, ctx.scale = linear, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (grad,) = grad_outputs
        x, z, a, *bs = ctx.saved_tensors
        grad_z = torch.empty_like(z)
        grad_bs: list[torch.Tensor] = []
        rank, column = bs[0].shape[0], 0
        for index, b in enumerate(bs):
            part = grad[:, column : column + b.shape[1]]
            column += b.shape[1]
            ranks = slice(index * rank, (index + 1) * rank)
            torch.mm(part, b.t(), out=grad_z[:, ranks])
            grad_bs.append((z[:, ranks].t() @ part).mul_(ctx.scale))
        grad_z.mul_(ctx.scale)
        grad_a = x.t() @ grad_z
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = grad @ ctx.linear.weight.t()
            grad_x.addmm_(grad_z, a.t())
        return grad_x, None, None, grad_a, *grad_bs


class _FrozenLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, linear: LinearWeights) -> torch.Tensor:
        ctx.linear = linear
        return plain_linear(x, linear)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor, None]:
        (grad,) = grad_outputs
        return grad @ ctx.linear.weight.t(), None


def plain_linear(x: Rows, linear: LinearWeights) -> Rows:
    if linear.bias is None:
        return x @ linear.weight
    return torch.addmm(linear.bias, x, linear.weight)


def _add_products(
    out: torch.Tensor, z: torch.Tensor, bs: Sequence[torch.Tensor], scale: float
) -> None:
    if len(bs) == 1:
        out.addmm_(z, bs[0], alpha=scale)
        return
    rank, column = bs[0].shape[0], 0
    for index, b in enumerate(bs):
        part = out[:, column : column + b.shape[1]]
        part.addmm_(z[:, index * rank : (index + 1) * rank], b, alpha=scale)
        column += b.shape[1]


def project(x: Rows, linear: LinearWeights, loras: LoraSlices) -> Rows:
    """The linear layer for all rows, with each slice's adapter added."""
    if torch.is_grad_enabled():
        if loras:
            ((_, _, pair),) = loras  # a training pass has one adapter, over all rows
            return _LoraLinear.apply(x, linear, pair.scale, pair.a, *pair.bs)  # pyright: ignore[reportReturnType]
        return _FrozenLinear.apply(x, linear)  # pyright: ignore[reportReturnType]
    return _add_loras(plain_linear(x, linear), x, loras)


def project_onto(residual: Rows, x: Rows, linear: LinearWeights, loras: LoraSlices) -> Rows:
    """residual + project(x), in one product less when there is no gradient to keep."""
    if torch.is_grad_enabled() or linear.bias is not None:
        return residual + project(x, linear, loras)
    return _add_loras(torch.addmm(residual, x, linear.weight), x, loras)


def _add_loras(out: Rows, x: Rows, loras: LoraSlices) -> Rows:
    for first, last, pair in loras:
        if last - first == x.shape[0]:
            _add_products(out, x @ pair.a, pair.bs, pair.scale)
        else:
            _add_products(out[first:last], x[first:last] @ pair.a, pair.bs, pair.scale)
    return out
