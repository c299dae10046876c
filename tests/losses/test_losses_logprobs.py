"""Log-probabilities from hidden states: values, gradients, chunks, memory."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from sgrpo_lightning.losses import kl_full, logprobs, token_logprobs

K, H, V = 11, 4, 7


class SoftcapHead(nn.Module):
    """A head with a bias and a soft cap, to show that any map will do."""

    def __init__(self, dtype=torch.float64):
        super().__init__()
        self.linear = nn.Linear(H, V, dtype=dtype)
        self.rows = []

    def forward(self, hidden):
        self.rows.append(len(hidden))
        return 5 * torch.tanh(self.linear(hidden) / 5)


class LargestTensor(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, torch.Tensor):
                self.numel = max(self.numel, x.numel())
        return out


@pytest.fixture
def batch():
    torch.manual_seed(0)
    hidden = torch.randn(K, H, dtype=torch.float64, requires_grad=True)
    reference = torch.randn(K, H, dtype=torch.float64), SoftcapHead()
    return hidden, SoftcapHead(), torch.randint(V, (K,)), reference


def naive(hidden, head, targets, reference, temperature):
    log_p = torch.log_softmax(head(hidden) / temperature, -1)
    log_q = torch.log_softmax(reference[1](reference[0]) / temperature, -1)
    rows = range(len(targets))
    return {
        "logprobs": torch.stack([log_p[i, targets[i]] for i in rows]),
        "entropy": torch.distributions.Categorical(logits=log_p).entropy(),
        "reference_logprobs": torch.stack([log_q[i, targets[i]] for i in rows]),
        "kl_full": kl_full(log_p, log_q),
    }


@pytest.mark.parametrize("chunk_size", [None, 1, 3, 11, 50])
@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.0])
def test_equals_plain_log_softmax_in_value_and_gradient(batch, chunk_size, temperature):
    hidden, head, targets, reference = batch
    leaves = [hidden, *head.parameters()]
    out = token_logprobs(
        hidden,
        head,
        targets,
        temperature=temperature,
        reference=reference,
        full_kl=True,
        chunk_size=chunk_size,
    )
    expected = naive(hidden, head, targets, reference, temperature)
    for name, value in expected.items():
        torch.testing.assert_close(getattr(out, name), value.detach(), rtol=1e-12, atol=1e-14)
    coefficients = torch.randn(2, K, dtype=torch.float64)
    loss = (coefficients[0] * out.logprobs + coefficients[1] * out.kl_full).sum()
    wanted = (coefficients[0] * expected["logprobs"] + coefficients[1] * expected["kl_full"]).sum()
    for got, want in zip(torch.autograd.grad(loss, leaves), torch.autograd.grad(wanted, leaves), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-14)


def test_chunks_equal_the_whole_in_float32():
    torch.manual_seed(0)
    hidden, head = torch.randn(64, 32, requires_grad=True), nn.Linear(32, 500)
    targets = torch.randint(500, (64,))
    grads = []
    for size in (64, 5):
        out = token_logprobs(hidden, head, targets, temperature=0.9, chunk_size=size)
        grads.append(torch.autograd.grad(out.logprobs.mean(), [hidden, *head.parameters()]))
    for whole, chunked in zip(*grads, strict=True):
        torch.testing.assert_close(chunked, whole, rtol=1e-5, atol=1e-8)


def test_chunks_add_up_in_the_precision_of_the_weights():
    """Under bf16, 64 chunks have no larger an error than one; added up in bf16 it would be three times that."""
    torch.manual_seed(0)
    hidden, targets, weights = torch.randn(2048, 32), torch.randint(300, (2048,)), torch.randn(2048)
    head = nn.Linear(32, 300, bias=False)

    def gradient(head, hidden, chunks):
        out = token_logprobs(hidden, head, targets, temperature=1.0, chunks=chunks)
        return torch.autograd.grad((out.logprobs * weights).sum(), head.weight)[0].double()

    exact = gradient(copy.deepcopy(head).double(), hidden.double(), 1)
    with torch.autocast("cpu", torch.bfloat16):
        whole, chunked = (gradient(head, hidden, chunks) for chunks in (1, 64))
    assert 1e-4 < (whole - exact).norm() / exact.norm() < 1e-2
    assert (chunked - exact).norm() < 1.1 * (whole - exact).norm()


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_gradcheck(batch, chunk_size):
    hidden, head, targets, reference = batch

    def both(hidden, weight):
        def tied(h):
            return h @ weight.T

        out = token_logprobs(
            hidden, tied, targets, temperature=0.8, reference=reference, full_kl=True, chunk_size=chunk_size
        )
        return out.logprobs, out.kl_full

    assert torch.autograd.gradcheck(both, (hidden, head.linear.weight))


def test_entropy_by_hand_and_without_a_graph():
    # logits log(1, 1, 2): p = (1/4, 1/4, 1/2), H = 1/2 log 4 + 1/2 log 2 = 1.5 log 2; a sure token has none
    logits = torch.tensor([[0.0, 0.0, math.log(2)], [0.0, -math.inf, -math.inf]], requires_grad=True)
    out = token_logprobs(logits, lambda h: h, torch.tensor([2, 0]), temperature=1.0)
    assert out.entropy.tolist() == pytest.approx([1.5 * math.log(2), 0.0])
    assert out.logprobs.tolist() == pytest.approx([-math.log(2), 0.0])
    assert not out.entropy.requires_grad
    out.logprobs.sum().backward()
    assert logits.grad.isfinite().all()


def test_temperature_divides_the_logits():
    logits = torch.tensor([[0.0, math.log(9)]])
    out = token_logprobs(logits, lambda h: h, torch.tensor([1]), temperature=2.0)
    assert out.logprobs.exp().item() == pytest.approx(3 / 4)  # sqrt(9) against 1


def test_entropy_saves_nothing_for_backward(batch):
    hidden, head, targets, _ = batch
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        token_logprobs(hidden, head, targets, temperature=1.0)
    # tanh and log_softmax keep their results; the rest is smaller than [K, V]
    assert len({t.data_ptr() for t in saved if t.numel() == K * V}) == 2


@pytest.mark.parametrize("full_kl", [False, True])
def test_the_whole_logits_never_exist(full_kl):
    torch.manual_seed(0)
    tokens, vocabulary, rows = 40, 300, 4
    hidden, head = torch.randn(tokens, 3, requires_grad=True), nn.Linear(3, vocabulary)
    reference = torch.randn(tokens, 3), nn.Linear(3, vocabulary)
    with LargestTensor() as largest:
        out = token_logprobs(
            hidden,
            head,
            torch.randint(vocabulary, (tokens,)),
            temperature=1.0,
            reference=reference,
            full_kl=full_kl,
            chunk_size=rows,
        )
        (out.logprobs.sum() + (out.kl_full.sum() if full_kl else 0)).backward()
    assert largest.numel == rows * vocabulary


def test_chunks_are_chosen_by_the_number_of_logits(batch, monkeypatch):
    hidden, head, targets, reference = batch
    token_logprobs(hidden, head, targets, temperature=1.0).logprobs.sum().backward()
    assert head.rows == [0, K]  # zero rows tell V; all in one chunk, not recomputed
    head.rows.clear()
    token_logprobs(hidden, head, targets, temperature=1.0, chunk_size=K).logprobs.sum().backward()
    assert head.rows == [K]
    head.rows.clear()
    monkeypatch.setattr(logprobs, "LOGITS_PER_CHUNK", 4 * V + 1)
    out = token_logprobs(hidden, head, targets, temperature=1.0, reference=reference)
    assert head.rows == [0, 4, 4, 3]
    out.logprobs.sum().backward()
    assert sorted(head.rows[4:]) == [3, 4, 4]
    assert reference[1].rows == [4, 4, 3]  # constants are not recomputed
    monkeypatch.setattr(logprobs, "LOGITS_PER_CHUNK", 1)
    assert len(token_logprobs(hidden, head, targets, temperature=1.0).logprobs) == K


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_no_tokens(batch, chunk_size):
    _, head, _, reference = batch
    hidden = torch.zeros(0, H, dtype=torch.float64, requires_grad=True)
    out = token_logprobs(
        hidden,
        head,
        torch.zeros(0, dtype=torch.long),
        temperature=1.0,
        reference=(reference[0][:0], reference[1]),
        full_kl=True,
        chunk_size=chunk_size,
    )
    assert [x.shape for x in (out.logprobs, out.entropy, out.reference_logprobs, out.kl_full)] == [(0,)] * 4
    (out.logprobs.sum() + out.kl_full.sum()).backward()
    assert hidden.grad.shape == (0, H)
    assert torch.equal(head.linear.weight.grad, torch.zeros(V, H, dtype=torch.float64))


def test_only_what_is_asked_for(batch):
    hidden, head, targets, reference = batch
    alone = token_logprobs(hidden, head, targets, temperature=1.0, chunk_size=3)
    assert alone.reference_logprobs is None
    assert alone.kl_full is None
    both = token_logprobs(hidden, head, targets, temperature=1.0, reference=reference, chunk_size=3)
    assert not both.reference_logprobs.requires_grad
    assert both.kl_full is None


def test_works_without_gradients(batch):
    hidden, head, targets, _ = batch
    with torch.no_grad():
        out = token_logprobs(hidden, head, targets, temperature=1.0, chunk_size=3)
    assert not out.logprobs.requires_grad


def test_low_precision_logits_are_raised():
    hidden, head = torch.randn(3, H).bfloat16(), nn.Linear(H, V).bfloat16()
    out = token_logprobs(hidden, head, torch.tensor([0, 1, 2]), temperature=0.5)
    expected = torch.log_softmax(head(hidden).float() / 0.5, -1)[range(3), [0, 1, 2]]
    assert out.logprobs.dtype == out.entropy.dtype == torch.float32
    torch.testing.assert_close(out.logprobs, expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": 0.0}, "temperature must be > 0, got 0.0"),
        ({"chunk_size": 0}, "chunk_size must be >= 1 row, got 0"),
        ({"full_kl": True}, "full_kl=True needs a reference, got None"),
        ({"targets": torch.tensor([0])}, r"hidden \[K, H\] and targets \[K\], got \[2, 4\] and \[1\]"),
        ({"reference": (torch.zeros(3, H), nn.Identity())}, "must have 2 rows, got 3"),
    ],
)
def test_rejects_wrong_inputs(change, message):
    arguments = {
        "hidden": torch.zeros(2, H),
        "lm_head": nn.Linear(H, V),
        "targets": torch.tensor([0, 1]),
        "temperature": 1.0,
    }
    with pytest.raises(ValueError, match=message):
        token_logprobs(**(arguments | change))
