"""Whole weights under every strategy, and what ranks may do with them on their own."""

import hashlib

import pytest
import torch
from sharded_runs import CASES, MAX_NEW_TOKENS, STRATEGIES, logits_of, small_policy

SPLIT = ("fsdp2", "deepspeed_3")  # strategies under which weights lie in pieces
everywhere = pytest.mark.parametrize("case", CASES, ids="-".join)
strategies = pytest.mark.parametrize("name", STRATEGIES)


def digest(weights):
    """Names in order, types, shapes and a hash of the bytes."""
    hashes = {name: hashlib.blake2b(weight.view(torch.uint8).numpy()).hexdigest() for name, weight in weights.items()}
    return [(name, weight.dtype, weight.shape, hashes[name]) for name, weight in weights.items()]


@strategies
def test_the_weights_are_the_unsharded_state_dict(strategy_runs, name):
    """Names in order, shapes and bytes, on every rank, the tied ones included."""
    expected = small_policy(adapters=False).state_dict()
    assert "lm_head.weight" in expected
    for seen in strategy_runs[name, "clipped"]:
        assert digest(seen["observed"][0]["weights"]) == digest(expected)


@strategies
def test_adapters_are_merged_as_peft_merges_them(strategy_runs, name):
    expected = small_policy(adapters=True).merge_and_unload().state_dict()
    for seen in strategy_runs[name, "adapters"]:
        weights = seen["observed"][0]["weights"]
        assert list(weights) == list(expected)
        assert all((weights[key] - expected[key]).abs().max() < 1e-6 for key in expected)


@everywhere
def test_they_are_the_same_on_all_ranks_and_inside(strategy_runs, case):
    """Also where a layer computes in another precision than the optimizer keeps."""
    first, second = ([digest(o["weights"]) for o in seen["observed"]] for seen in strategy_runs[case])
    assert first == second
    assert all(digest(o["inside"]) == digest(o["weights"]) for seen in strategy_runs[case] for o in seen["observed"])


@pytest.mark.parametrize("case", [case for case in CASES if case[1] != "bf16"], ids="-".join)
def test_logits_are_those_of_the_unsharded_model(strategy_runs, case):
    """Before training and, with the weights as they then were, in the middle of it."""
    model = small_policy(adapters=False)
    for seen in strategy_runs[case]:
        for observed in seen["observed"]:
            model.load_state_dict(observed["weights"])
            torch.testing.assert_close(observed["logits"], logits_of(model), rtol=1e-5, atol=2e-5)


@everywhere
def test_a_forward_inside_is_the_forward_of_training(strategy_runs, case):
    """To the bit, in the precision of training."""
    for seen in strategy_runs[case]:
        steps = len(seen["losses"]) - len(seen["losses"]) // 5 * 2  # of the first iteration: 3 of 5
        first_of_each = [seen["losses"][0], seen["losses"][steps]]
        assert first_of_each == [observed["loss"] for observed in seen["observed"]]


@everywhere
def test_ranks_may_run_different_numbers_of_passes(strategy_runs, case):
    for seen, tokens in zip(strategy_runs[case], MAX_NEW_TOKENS, strict=True):
        assert [observed["longest"] for observed in seen["observed"]] == [tokens, tokens]


@pytest.mark.parametrize("kind", ["clipped", "adapters", "bf16"])
def test_afterwards_they_lie_in_pieces_again(strategy_runs, kind):
    """Also when one of the ranks broke off."""
    whole = sum(p.numel() for p in small_policy(kind == "adapters").parameters())
    for name in STRATEGIES:
        for rank, seen in enumerate(strategy_runs[name, kind]):
            held = [count for observed in seen["observed"] for count in observed["held"]]
            assert len(set(held)) == 1, f"{name}, rank {rank}"
            assert held[0] < 0.51 * whole if name in SPLIT else held[0] == whole
