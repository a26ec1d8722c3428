"""AdamW with stochastic rounding, and the chunked loss, against what they stand for."""

import pytest
import torch

from tasks.train.fast import loss as chunked
from tasks.train.fast.loss import cross_entropy
from tasks.train.fast.optimizer import StochasticAdamW, hash_bits, round_stochastic


def test_rounding_is_unbiased_and_hits_the_two_neighbours() -> None:
    value = torch.full((1 << 20,), 1.0 + 1 / 512)  # a quarter of the way from 1 to the next bf16, 1 + 1/128
    bits = hash_bits(torch.arange(1 << 20, dtype=torch.int32)) & 0xFFFF
    rounded = round_stochastic(value, bits)
    assert set(rounded.float().unique().tolist()) == {1.0, 1.0 + 1 / 128}
    # three standard deviations of a mean of 2^20 draws with p = 1/4
    assert rounded.double().mean().item() == pytest.approx(1 + 1 / 512, abs=3 * (0.1875**0.5 / 1024) / 128)
    negative = round_stochastic(-value, bits)
    assert torch.equal(negative, -rounded)
    exact = torch.tensor([0.0, -2.5, 3.0])
    assert torch.equal(round_stochastic(exact, torch.full((3,), 0xFFFF, dtype=torch.int32)).float(), exact)


def test_hash_bits_are_even_in_every_bit() -> None:
    mixed = hash_bits(torch.arange(1 << 18, dtype=torch.int32) + 12345)
    for bit in range(32):
        share = ((mixed >> bit) & 1).double().mean().item()
        assert share == pytest.approx(0.5, abs=4 * 0.5 / 512)


def test_float32_weights_follow_torchs_adamw() -> None:
    torch.manual_seed(0)
    ours, theirs = (torch.nn.Linear(8, 8) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    first = StochasticAdamW(ours.parameters(), lr=1e-2, weight_decay=0.1, max_norm=0.5)
    second = torch.optim.AdamW(theirs.parameters(), lr=1e-2, weight_decay=0.1)
    for step in range(20):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))
        for model, optimizer in ((ours, first), (theirs, second)):
            optimizer.zero_grad()
            model(x).pow(2).sum().backward()
            if optimizer is second:
                torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
            optimizer.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_bf16_weights_move_where_nearest_rounding_stands_still() -> None:
    weight = torch.nn.Parameter(torch.full((4096,), 1.0, dtype=torch.bfloat16))
    optimizer = StochasticAdamW([weight], lr=1e-4)
    for _ in range(100):
        weight.grad = torch.full_like(weight, 0.5)
        optimizer.step()
    # 100 steps of 1e-4 each; a step is 1/78 of the distance to the next bf16 number
    assert weight.double().mean().item() == pytest.approx(0.99, abs=4e-4)


def test_the_same_seed_rounds_the_same_and_a_resumed_optimizer_goes_on() -> None:
    def run(interrupted: bool) -> torch.Tensor:
        weight = torch.nn.Parameter(torch.linspace(-1, 1, 512).to(torch.bfloat16))
        optimizer = StochasticAdamW([weight], lr=1e-3, seed=7)
        for step in range(6):
            if interrupted and step == 3:
                state = optimizer.state_dict()
                optimizer = StochasticAdamW([weight], lr=1e-3)
                optimizer.load_state_dict(state)
            weight.grad = torch.sin(torch.arange(512) + step).to(torch.bfloat16)
            optimizer.step()
        return weight.detach()

    assert torch.equal(run(False), run(True))


@pytest.mark.parametrize("chunk", [3, 64])
def test_chunked_loss_and_gradients_are_cross_entropys(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked, "CHUNK", chunk)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(10, 16, generator=generator, requires_grad=True)
    weight = torch.randn(40, 16, generator=generator, requires_grad=True)
    targets = torch.randint(0, 40, (10,), generator=generator)
    expected = torch.nn.functional.cross_entropy(hidden @ weight.T, targets)
    wanted = torch.autograd.grad(expected * 2, [hidden, weight])
    found = cross_entropy(hidden, weight, targets)
    assert found.item() == pytest.approx(expected.item(), abs=1e-6)
    for one, other in zip(torch.autograd.grad(found * 2, [hidden, weight]), wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
    assert cross_entropy(hidden, weight, targets, divisor=20).item() == pytest.approx(expected.item() / 2, abs=1e-6)


def test_the_heads_gradient_in_bf16_keeps_what_every_chunk_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked, "CHUNK", 4)
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, 16, generator=generator).bfloat16() for n in (400, 40))
    targets = torch.randint(0, 40, (400,), generator=generator)
    exact_weight = weight.float().requires_grad_()
    [exact] = torch.autograd.grad(
        torch.nn.functional.cross_entropy(hidden.float() @ exact_weight.T, targets), exact_weight
    )
    for weight_of in (weight.requires_grad_(), weight.float().detach().requires_grad_()):
        before = weight_of.detach().clone()
        [found] = torch.autograd.grad(cross_entropy(hidden.to(weight_of.dtype), weight_of, targets), weight_of)
        # A hundred shares added in bf16 would be off by several per cent.
        assert found.dtype == weight_of.dtype and (found.float() - exact).norm() < 0.006 * exact.norm()
        assert torch.equal(weight_of, before)


def test_no_trained_token_is_a_loss_of_zero() -> None:
    weight = torch.randn(5, 4, requires_grad=True)
    loss = cross_entropy(torch.zeros(0, 4, requires_grad=True), weight, torch.zeros(0, dtype=torch.long))
    loss.backward()
    assert loss.item() == 0.0 and weight.grad is not None and not weight.grad.any()
