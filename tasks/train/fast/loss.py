"""Cross-entropy through the language-model head in chunks, without ever holding all logits.

The gradients of the hidden states and of the head are computed with the loss (as Liger's and other fused kernels do),
so the logits of a chunk live only while it is worked on.
"""

from functools import cache
from typing import Any

import torch

CHUNK = 4096  # tokens; 152,064 entries x 4,096 tokens are 1.2 GB in bf16
COMPILED_FROM = 50_000_000  # entries of a head; compiling takes seconds, which a smaller one does not win back


def _chunk(logits: torch.Tensor, targets: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The chunk's summed loss and the gradient of its logits, scaled."""
    values = logits.float()
    log_sum = torch.logsumexp(values, dim=-1, keepdim=True)
    picked = values.gather(1, targets[:, None])
    columns = torch.arange(values.shape[1], device=values.device)
    gradient = (torch.exp(values - log_sum) - (columns == targets[:, None]).float()) * scale
    return (log_sum - picked).sum(), gradient.to(logits.dtype)


def _is_large(weight: torch.Tensor) -> bool:
    """Whether a compiled chunk of this head saves more time than compiling takes."""
    return weight.is_cuda and weight.numel() >= COMPILED_FROM


@cache
def _compiled_chunk() -> Any:
    return torch.compile(_chunk, dynamic=True)


def _added(total: torch.Tensor | None, share: torch.Tensor) -> torch.Tensor:
    """The sum of the chunks' gradients of the head: from the second on in float32, since bf16 would lose small shares.

    In place: the head of a 7B model is 2 GiB in float32, and a copy of it decides what fits.
    """
    return share if total is None else total.float().add_(share)


class ChunkedCrossEntropy(torch.autograd.Function):
    """`apply(hidden, head_weight, targets, divisor)`: sum of the targets' losses over the divisor."""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, divisor: float
    ) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        grad_hidden = torch.empty_like(hidden)
        grad_weight: torch.Tensor | None = None
        function = _compiled_chunk() if _is_large(weight) else _chunk
        wants_weight = weight.requires_grad
        for start in range(0, len(targets), CHUNK):
            part = hidden[start : start + CHUNK]
            loss, gradient = function(part @ weight.T, targets[start : start + CHUNK], 1.0 / divisor)
            total += loss
            torch.mm(gradient, weight, out=grad_hidden[start : start + CHUNK])
            if wants_weight:
                grad_weight = _added(grad_weight, gradient.T @ part)
        if wants_weight:
            grad_weight = torch.zeros_like(weight) if grad_weight is None else grad_weight.to(weight.dtype)
        ctx.save_for_backward(grad_hidden, grad_weight)
        return total / divisor

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grad_hidden, grad_weight = ctx.saved_tensors
        # `grad` is 1 unless the loss was scaled; multiplying costs one pass over the head and no synchronization.
        return grad_hidden * grad, None if grad_weight is None else grad_weight * grad, None, None


def cross_entropy(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, divisor: float | None = None
) -> torch.Tensor:
    """Mean cross-entropy of the targets (or their sum over `divisor`: the trained tokens of a whole batch)."""
    if divisor is None:
        divisor = max(1, len(targets))
    result: torch.Tensor = ChunkedCrossEntropy.apply(hidden, weight, targets, float(divisor))
    return result


def _log_probs(
    logits: torch.Tensor, targets: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probabilities of the targets, entropies, and the log-sums a second pass needs."""
    values = logits.float() / temperature
    log_sum = torch.logsumexp(values, dim=-1)
    chances = torch.exp(values - log_sum[:, None])
    entropy = log_sum - (chances * values).sum(-1)
    return values.gather(1, targets[:, None])[:, 0] - log_sum, entropy, log_sum


def _log_probs_gradient(
    logits: torch.Tensor, targets: torch.Tensor, log_sum: torch.Tensor, grad: torch.Tensor, temperature: float
) -> torch.Tensor:
    values = logits.float() / temperature
    columns = torch.arange(values.shape[1], device=values.device)
    share = (columns == targets[:, None]).float() - torch.exp(values - log_sum[:, None])
    return (share * (grad / temperature)[:, None]).to(logits.dtype)


@cache
def _compiled_log_probs() -> tuple[Any, Any]:
    return torch.compile(_log_probs, dynamic=True), torch.compile(_log_probs_gradient, dynamic=True)


class ChunkedLogProbs(torch.autograd.Function):
    """`apply(hidden, head_weight, targets, temperature)`: logits of a chunk are computed again in the backward."""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        function = _compiled_log_probs()[0] if _is_large(weight) else _log_probs
        chunks: list[tuple[torch.Tensor, ...]] = [
            function(hidden[start : start + CHUNK] @ weight.T, targets[start : start + CHUNK], temperature)
            for start in range(0, len(targets), CHUNK)
        ]
        log_probs, entropies, log_sums = (
            (torch.cat(part) for part in zip(*chunks, strict=True))
            if chunks
            else [hidden.new_zeros(0).float() for _ in range(3)]
        )
        ctx.save_for_backward(hidden, weight, targets, log_sums)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropies)
        return log_probs, entropies

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, targets, log_sums = ctx.saved_tensors
        function = _compiled_log_probs()[1] if _is_large(weight) else _log_probs_gradient
        grad_hidden = torch.zeros_like(hidden)
        grad_weight: torch.Tensor | None = None
        for start in range(0, len(targets), CHUNK):
            part = slice(start, start + CHUNK)
            gradient = function(hidden[part] @ weight.T, targets[part], log_sums[part], grad[part], ctx.temperature)
            torch.mm(gradient, weight, out=grad_hidden[part])
            if weight.requires_grad:
                grad_weight = _added(grad_weight, gradient.T @ hidden[part])
        if weight.requires_grad:
            grad_weight = torch.zeros_like(weight) if grad_weight is None else grad_weight.to(weight.dtype)
        return grad_hidden, grad_weight, None, None


def token_log_probs(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, temperature: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of each target and the entropy of its distribution, without ever holding all logits."""
    result: tuple[torch.Tensor, torch.Tensor] = ChunkedLogProbs.apply(hidden, weight, targets, float(temperature))
    return result
