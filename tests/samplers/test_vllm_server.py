"""Servers that share the work, fail, come back with other weights, and answer nonsense."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from fake_vllm import GENERATE, FakeVLLM, completion, logprob

from sgrpo_lightning.samplers import SamplerError, nccl, vllm_server
from sgrpo_lightning.samplers.http import Server
from sgrpo_lightning.samplers.nccl import NcclTransfer
from sgrpo_lightning.samplers.transfer import FileTransfer
from sgrpo_lightning.samplers.vllm_server import Patience, VLLMServerSampler

ROOT = Path(__file__).parents[2]
PAD, EOS = 0, 1
LIMIT = 6


@pytest.fixture(scope="module")
def model(make_policy):
    return make_policy().model


@pytest.fixture
def servers():
    """(number, **traits) -> so many fake servers."""
    running = []

    def make(number, **traits):
        running.extend(made := [FakeVLLM(**traits) for _ in range(number)])
        return made

    yield make
    for server in running:
        server.close()


@pytest.fixture
def started(model, tmp_path):
    """(servers, **knobs) -> a sampler that has been started with them, and given weights."""

    def start(running, *, synced=True, patience=0.6, **knobs):
        sampler = VLLMServerSampler(
            urls=[server.url for server in running],
            weights_dir=str(tmp_path / "weights"),
            patience=Patience(start=0.5, server=patience, request=10),
            **{"max_new_tokens": LIMIT, **knobs},
        )
        sampler.start(model, max_prompt_tokens=9)
        for server in running:
            server.calls.clear()
            server.asked.clear()
        if synced:
            sampler.sync(weights_of(model), version=3)
        return sampler

    return start


def weights_of(model):
    return list(model.state_dict().items())


def prompts(groups=5):
    """Of 1 to 9 tokens, left-padded."""
    rows = torch.randint(4, 300, (groups, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(9) >= torch.arange(groups)[:, None] % 9
    return rows.where(mask, torch.tensor(PAD)), mask


def generate(sampler, model, *, groups=5, samples=3, seed=0):
    return sampler.generate(
        model,
        *prompts(groups),
        samples_per_group=samples,
        eos_token_ids=torch.tensor([EOS, 2]),
        pad_token_id=PAD,
        generator=torch.Generator().manual_seed(seed),
    )


def base_seed(seed):
    return int(torch.randint(2**62, (), generator=torch.Generator().manual_seed(seed)))


def check(samples, *, groups=5, size=3, seed=0):
    """Every row is the completion of its own prompt and its own seed."""
    ids, mask = prompts(groups)
    assert len(samples.completion_ids) == groups * size
    for row in range(groups * size):
        prompt = ids[row // size][mask[row // size]].tolist()
        expected = completion(prompt, base_seed(seed) + row, LIMIT, [EOS])
        length = len(expected)
        assert samples.completion_ids[row, :length].tolist() == expected
        assert samples.completion_mask[row].tolist() == [True] * length + [False] * (
            len(samples.completion_mask[row]) - length
        )
        assert (samples.completion_ids[row, length:] == PAD).all()
        torch.testing.assert_close(
            samples.sampler_logprobs[row, :length], torch.tensor([logprob(token) for token in expected])
        )
        assert samples.truncated[row].item() == (expected[-1] != EOS)


# ---- samples ----


def test_samples_are_those_of_their_prompts(servers, started, model):
    samples = generate(started(servers(1)), model)
    check(samples)
    assert {True, False} == set(samples.truncated.tolist())
    assert samples.completion_ids.shape[1] == samples.completion_mask.sum(-1).max()


def test_samples_know_the_version_of_their_weights(servers, started, model):
    sampler = started(servers(2))
    assert (sampler.version, generate(sampler, model).weights_version) == (3, 3)
    sampler.sync(weights_of(model), version=8)
    assert (sampler.version, generate(sampler, model).weights_version) == (8, 8)


def test_nothing_is_left_to_the_defaults_of_the_server(servers, started, model):
    (server,) = servers(1)
    generate(started([server], temperature=0.7), model, groups=1)
    assert server.asked[0]["sampling_params"] == {
        "n": 3,
        "seed": base_seed(0),
        "max_tokens": LIMIT,
        "temperature": 0.7,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "stop_token_ids": [1, 2],
        "ignore_eos": True,
        "logprobs": 0,
        "detokenize": False,
    }


def test_no_two_samples_share_a_seed(servers, started, model):
    """Of a call, of two calls with one generator after the other, and of large groups, asked for in parts."""
    (server,) = servers(1)
    sampler = started([server])
    check(generate(sampler, model, groups=2, samples=150), groups=2, size=150)
    generate(sampler, model, groups=2, samples=3, seed=1)
    params = [body["sampling_params"] for body in server.asked]
    assert sorted(one["n"] for one in params) == [3, 3, 22, 22, 64, 64, 64, 64]
    seeds = [one["seed"] + index for one in params for index in range(one["n"])]
    assert len(set(seeds)) == len(seeds) == 306


def test_a_request_asks_for_no_more_than_the_servers_sample_together(servers, started, model):
    small, large = servers(1, scheduler_config={"max_num_seqs": 2}) + servers(1)
    check(generate(started([small, large]), model))
    assert {body["sampling_params"]["n"] for body in small.asked + large.asked} == {1, 2}


# ---- several servers ----


def test_a_fast_server_does_more(servers, started, model):
    fast, slow = servers(1, seconds=0.01) + servers(1, seconds=0.1)
    check(generate(started([fast, slow], in_flight=2), model, groups=40), groups=40)
    assert len(slow.asked) >= 2
    assert len(fast.asked) > 2 * len(slow.asked)


def test_few_prompts_are_spread(servers, started, model):
    running = servers(4, seconds=0.1)
    check(generate(started(running), model, groups=4), groups=4)
    assert [len(server.asked) for server in running] == [1, 1, 1, 1]


def test_ranks_begin_at_different_servers(servers, started, model, monkeypatch):
    running = servers(3, seconds=0.05)
    monkeypatch.setattr(vllm_server, "_rank", lambda: 1)
    sampler = started(running, synced=False)
    assert [server.url for server in sampler._crew.servers] == [running[i].url for i in (1, 2, 0)]


def test_a_server_has_no_more_requests_than_agreed(servers, started, model):
    (server,) = servers(1, seconds=0.03)
    together, most = [0], [0]
    answer, lock = server.generate, threading.Lock()

    def counted(body):
        with lock:
            together[0] += 1
            most[0] = max(most[0], together[0])
        result = answer(body)
        with lock:
            together[0] -= 1
        return result

    sampler = started([server], in_flight=3)
    server.generate = counted
    check(generate(sampler, model, groups=12), groups=12)
    assert most[0] == 3


def test_what_a_dying_server_drops_others_take_up(servers, started, model):
    dying, other = servers(2, seconds=0.01)
    sampler = started([dying, other], in_flight=2)
    dying.dies_after = 3
    check(generate(sampler, model, groups=20), groups=20)
    assert dying.dead
    assert len(other.asked) >= 17
    check(generate(sampler, model, seed=4), seed=4)


def test_a_dead_server_is_asked_with_one_request_at_a_time(servers, started, model):
    dead, other = servers(2, seconds=0.05)
    sampler = started([dead, other], in_flight=4, patience=30)
    dead.dies_after = 0
    generate(sampler, model, groups=20)
    dead.dead, dead.trouble[GENERATE], before = False, 500, dead.calls.count(GENERATE)
    generate(sampler, model, groups=20)
    assert 1 <= dead.calls.count(GENERATE) - before <= 3


def test_a_server_that_comes_back_is_used_again(servers, started, model):
    (server,) = servers(1)
    sampler = started([server], patience=20)
    server.dead = True
    threading.Timer(0.4, setattr, (server, "dead", False)).start()
    check(generate(sampler, model))


def test_without_a_server_the_run_ends_with_what_to_do(servers, started, model):
    running = servers(2, seconds=0.01)
    sampler = started(running)
    for server in running:
        server.dies_after = 2
    with pytest.raises(RuntimeError, match="no vLLM server is left") as caught:
        generate(sampler, model, groups=20)
    for part in (*(server.url for server in running), "RemoteDisconnected", "scripts/vllm_server.sh", "resume="):
        assert part in str(caught.value)


def test_a_request_that_always_fails_ends_the_run(servers, started, model):
    """On servers that answer all others, so that nobody waits for ever."""
    running = servers(2)
    sampler = started(running, patience=20, in_flight=2)
    ids, mask = prompts()
    poison = ids[2][mask[2]].tolist()
    for server in running:
        server.generate = lambda body, usual=server.generate: (
            (500, {"error": {"message": "out of memory"}}) if body["token_ids"] == poison else usual(body)
        )
        server.seconds = 0.01
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match="answered 500: out of memory"):
        generate(sampler, model, groups=400)
    assert time.monotonic() - begun < 15  # before the patience ends


def test_a_refusal_ends_the_run_at_once(servers, started, model):
    (server,) = servers(1)
    sampler = started([server], patience=100)
    server.trouble[GENERATE] = 400
    with pytest.raises(RuntimeError, match=f"{server.url}{GENERATE} answered 400: no {GENERATE}"):
        generate(sampler, model)


# ---- answers that cannot be ----


def drop(field):
    return lambda choices: [{**choices[0], field: None}, *choices[1:]]


def score(**changes):
    """Change the first token's entry."""

    def change(choices):
        first, *rest = choices[0]["logprobs"]["content"]
        return [{**choices[0], "logprobs": {"content": [{**first, **changes}, *rest]}}, *choices[1:]]

    return change


def tokens(*ids):
    """Make the first completion these."""

    def change(choices):
        content = [{"token_id": token, "logprob": -1.0} for token in ids]
        spans = [{**choices[0]["weight_versions"][0], "end": len(ids)}]
        first = {**choices[0], "token_ids": list(ids), "logprobs": {"content": content}, "weight_versions": spans}
        return [first, *choices[1:]]

    return change


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda choices: choices[1:], "was asked for 3 completions and sent 2"),
        (drop("token_ids"), "sent no token_ids"),
        (drop("logprobs"), "sent no logprobs"),
        (drop("weight_versions"), "sent no weight_versions"),
        (lambda choices: [{**choices[0], "logprobs": {"content": []}}, *choices[1:]], "log-probabilities of 0 tokens"),
        (score(token_id=999), "which are not the"),
        (score(logprob=None), "a log-probability of nan"),
        (score(logprob=-9999.0), "a log-probability of -9999.0"),
        (score(logprob=0.5), "a log-probability of 0.5"),
        (tokens(), "sent 0 tokens where 1 to 6 were asked for"),
        (tokens(*range(10, 17)), "sent 7 tokens where 1 to 6 were asked for"),
        (tokens(10, 11), "sent 2 tokens of at most 6 without an end token"),
        (tokens(10, EOS, 11, EOS), "sent tokens after an end token"),
    ],
)
def test_bad_answers_are_named(servers, started, model, spoil, message):
    (server,) = servers(1)
    sampler = started([server])
    server.spoil = spoil
    with pytest.raises(RuntimeError, match=message) as caught:
        generate(sampler, model, groups=1)
    assert server.url in str(caught.value)


def test_choices_may_come_in_any_order(servers, started, model):
    (server,) = servers(1)
    sampler = started([server])
    server.spoil = lambda choices: choices[::-1]
    check(generate(sampler, model))


def test_an_aborted_completion_is_asked_for_again(servers, started, model):
    (server,) = servers(1)
    sampler, spoiled = started([server], patience=20), []

    def abort_once(choices):
        if not spoiled:
            spoiled.append(True)
            return [{**choices[0], "finish_reason": "abort"}, *choices[1:]]
        return choices

    server.spoil = abort_once
    check(generate(sampler, model))
    assert spoiled


def test_tokens_that_no_server_survives_are_not_sent(servers, started, model):
    (server,) = servers(1)
    ids, mask = prompts()
    ids[1, 8] = model.config.vocab_size
    with pytest.raises(ValueError, match=f"a prompt holds token {model.config.vocab_size}"):
        started([server]).generate(
            model,
            ids,
            mask,
            samples_per_group=1,
            eos_token_ids=torch.tensor([EOS]),
            pad_token_id=PAD,
            generator=torch.Generator(),
        )
    assert not server.asked


# ---- weights ----


def test_files_hold_the_weights_and_servers_load_them_between_requests(servers, started, model, tmp_path):
    running = servers(2)
    sampler = started(running)
    for server in running:
        loaded = [call for call in server.calls if call != "/health"]
        assert loaded == ["/pause", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version", "/resume"]
        assert server.label == sampler._label
        assert set(server.weights) == set(model.state_dict()) >= {"lm_head.weight"}
        assert all(torch.equal(server.weights[name], tensor) for name, tensor in weights_of(model))
    first = list((tmp_path / "weights").iterdir())
    sampler.sync(weights_of(model), version=4)
    second = list((tmp_path / "weights").iterdir())
    assert len(first) == len(second) == 1
    assert first != second
    assert {"config.json", "model-00001.safetensors"} == {file.name for file in second[0].iterdir()}
    sampler.close()
    assert not list((tmp_path / "weights").iterdir())


def test_large_weights_are_sent_in_several_files(servers, model, tmp_path):
    (server,) = servers(1)
    transfer = FileTransfer(tmp_path, model.config, dtype=torch.bfloat16, patience=1, part_bytes=20_000)
    assert transfer.send(weights_of(model), "one", [Server(server.url, timeout=5)]) == []
    assert server.files > 2
    assert all(torch.equal(server.weights[name], tensor.bfloat16()) for name, tensor in weights_of(model))


def shapes_changed(weights):
    return [(name, tensor[:1] if name == "model.norm.weight" else tensor) for name, tensor in weights]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: weights[:-1], "lm_head.weight is missing"),
        (lambda weights: [*weights, ("extra", torch.ones(1))], "extra is unknown"),
        (lambda weights: [*weights, weights[0]], "model.embed_tokens.weight came twice"),
        (shapes_changed, r"model.norm.weight has shape \(1,\), expected \(32,\)"),
    ],
)
def test_other_weights_than_those_of_the_model_are_refused(servers, started, model, change, message):
    """And read to the end all the same, for other ranks are gathering them."""
    (server,) = servers(1)
    sampler = started([server], synced=False)
    weights = iter(change(weights_of(model)))
    with pytest.raises(ValueError, match=message):
        sampler.sync(weights, version=0)
    assert next(weights, None) is None
    assert server.label == "default"
    assert sampler.version is None


def test_without_weights_there_are_no_samples(servers, started, model):
    with pytest.raises(RuntimeError, match="sync comes before generate"):
        generate(started(servers(1), synced=False), model)


def test_a_server_that_is_away_at_a_sync_gets_the_weights_when_it_is_back(servers, started, model, caplog):
    away, other = servers(2, seconds=0.01)
    sampler = started([away, other], in_flight=1)
    away.dead = True
    sampler.sync(weights_of(model), version=4)
    assert f"{away.url}/pause" in caplog.text
    away.restart()
    check(generate(sampler, model, groups=20), groups=20)
    assert away.label == other.label == sampler._label
    assert len(away.asked) > 2


def test_a_sync_without_any_server_ends_with_what_to_do(servers, started, model):
    (server,) = servers(1)
    sampler = started([server], patience=0.1)
    server.dead = True
    with pytest.raises(RuntimeError, match=f"no vLLM server can take the weights: {server.url}.*resume="):
        sampler.sync(weights_of(model), version=4)


def test_a_server_that_cannot_load_the_weights_is_not_asked_for_ever(servers, started, model):
    (server,) = servers(1)
    sampler = started([server], synced=False, patience=1000)
    server.trouble["/collective_rpc"] = 500
    with pytest.raises(RuntimeError, match=r"answered 500: no /collective_rpc.* see sampler\.weights_dir = "):
        sampler.sync(weights_of(model), version=4)


def test_the_prefix_cache_has_to_be_cleared(servers, started, model):
    (server,) = servers(1)
    sampler = started([server])
    server.uncleared = 2
    sampler.sync(weights_of(model), version=4)
    assert server.label == sampler._label
    server.uncleared = 1000
    with pytest.raises(RuntimeError, match="does not clear its prefix cache"):
        sampler.sync(weights_of(model), version=5)


# ---- weights that are not the trainer's ----


def test_a_restarted_server_gets_the_weights_again(servers, started, model, caplog):
    (server,) = servers(1)
    sampler = started([server])
    server.restart()
    check(generate(sampler, model))
    assert server.label == sampler._label
    assert set(server.weights) == set(model.state_dict())
    assert "sampled with weights ('default',)" in caplog.text
    assert server.calls.count("/collective_rpc") == 2  # at the sync, and once for all requests that were under way


def test_the_weights_of_another_run_are_noticed(servers, started, model):
    (server,) = servers(1)
    sampler = started([server])
    server.label = "another-run-3-0"
    check(generate(sampler, model))
    assert server.label == sampler._label


def test_two_syncs_at_the_same_step_have_different_labels(servers, started, model):
    sampler = started(servers(1))
    first = sampler._label
    sampler.sync(weights_of(model), version=3)
    assert sampler._label != first


def test_a_completion_across_two_versions_is_not_taken(servers, started, model):
    (server,) = servers(1)
    sampler, spoiled = started([server]), []

    def cross_once(choices):
        if spoiled or len(choices[0]["token_ids"]) < 2:
            return choices
        spoiled.append(True)
        spans = [{"version": "old", "start": 0, "end": 1}, {**choices[0]["weight_versions"][0], "start": 1}]
        return [{**choices[0], "weight_versions": spans}, *choices[1:]]

    server.spoil = cross_once
    check(generate(sampler, model, groups=20), groups=20)
    assert len(server.asked) == 21


def test_two_runs_cannot_share_a_server(servers, started, model):
    (server,) = servers(1)
    sampler = started([server])
    server.update_weight_version = lambda query, body: {}
    server.label = "another-run"
    with pytest.raises(RuntimeError, match="it must serve one run alone"):
        generate(sampler, model)


# ---- NCCL ----


class FakeGroup:
    """Keeps what is broadcast."""

    def __init__(self, address, port, world_size):
        self.place, self.sent, self.destroyed = (address, port, world_size), [], False

    def broadcast(self, tensor):
        self.sent.append(tensor.clone())
        return tensor

    def done(self):
        return True

    def destroy(self):
        self.destroyed = True


@pytest.fixture
def over_nccl(servers, model):
    """Two servers of 1 and 4 workers, the transfer, and the groups that it has made."""
    running, groups = servers(1) + servers(1, workers=4), []

    def connect(*place):
        groups.append(FakeGroup(*place))
        return groups[-1]

    return running, NcclTransfer(dtype=torch.bfloat16, connect=connect, part_bytes=10_000), groups


def clients(running):
    return [Server(server.url, timeout=5) for server in running]


def test_nccl_sends_in_parts_what_it_has_announced(over_nccl, model):
    running, transfer, groups = over_nccl
    assert transfer.send(weights_of(model), "one", clients(running)) == []
    assert [group.place[2] for group in groups] == [6]
    offsets = [(server.joined[0]["rank_offset"], server.joined[0]["world_size"]) for server in running]
    assert offsets == [(1, 6), (2, 6)]
    assert [server.joined[0]["master_port"] for server in running] == [groups[0].place[1]] * 2
    expected = [(name, tensor.bfloat16()) for name, tensor in weights_of(model)]
    assert all(torch.equal(sent, tensor) for sent, (_, tensor) in zip(groups[0].sent, expected, strict=True))
    for server in running:
        assert server.announced == [(name, "bfloat16", tuple(tensor.shape)) for name, tensor in expected]
        calls = [call for call in server.calls if call not in ("/health", "/weight_info", "/get_world_size")]
        assert calls[:4] == [
            "/shutdown_weight_transfer_engine",
            "/init_weight_transfer_engine",
            "/pause",
            "/start_weight_update",
        ]
        assert set(calls[4:-4]) == {"/update_weights"}
        assert len(calls[4:-4]) > 2
        assert calls[-4:] == ["/finish_weight_update", "/reset_prefix_cache", "/update_weight_version", "/resume"]
        assert server.label == "one"
    transfer.close()
    assert groups[0].destroyed


def test_nccl_makes_its_group_anew_when_a_server_was_restarted(over_nccl, model):
    running, transfer, groups = over_nccl
    there = clients(running)
    transfer.send(weights_of(model), "one", there)
    transfer.send(weights_of(model), "two", there)
    assert len(groups) == 1
    running[1].restart()
    transfer.send(weights_of(model), "three", there)
    assert [group.destroyed for group in groups] == [True, False]
    running[0].dead = True
    away = transfer.send(weights_of(model), "four", there)
    assert [group.place[2] for group in groups] == [6, 6, 5]
    assert running[0].url in str(away[0])
    assert running[1].label == "four"


def test_nccl_leaves_a_server_out_that_has_lost_its_weights(servers, started, model):
    lost, other = servers(2, seconds=0.01)
    sampler = started([lost, other], in_flight=1, patience=1000)
    sampler._transfer = NcclTransfer(dtype=None, connect=FakeGroup)
    sampler.sync(weights_of(model), version=4)
    lost.restart()
    check(generate(sampler, model, groups=10), groups=10)
    assert len(lost.asked) == 1
    other.restart()
    with pytest.raises(RuntimeError, match=r"does not hold the weights of this run.*resume="):
        generate(sampler, model)
    sampler.sync(weights_of(model), version=5)
    check(generate(sampler, model))


def test_nccl_does_not_wait_for_a_server_that_failed(over_nccl, model):
    running, transfer, _ = over_nccl
    running[1].trouble["/update_weights"] = 500
    transfer.connect = lambda *place: type("Stuck", (FakeGroup,), {"done": lambda self: False})(*place)
    with pytest.raises(RuntimeError, match="answered 500: no /update_weights"):
        transfer.send(weights_of(model), "one", clients(running))
    assert running[0].label == "default"


@pytest.mark.parametrize(
    ("transfer", "gpu", "vllm", "backend", "way"),
    [
        ("auto", True, True, "nccl", NcclTransfer),
        ("auto", False, True, "nccl", FileTransfer),
        ("auto", True, False, "nccl", FileTransfer),
        ("auto", True, True, "ipc", FileTransfer),
        ("files", True, True, "nccl", FileTransfer),
        ("nccl", True, True, "nccl", NcclTransfer),
        ("nccl", True, True, None, RuntimeError),
        ("nccl", False, True, "nccl", RuntimeError),
    ],
)
def test_how_weights_travel(servers, started, monkeypatch, transfer, gpu, vllm, backend, way):
    running = servers(1, weight_transfer_config={"backend": backend} if backend else None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(vllm_server, "find_spec", lambda name: object() if vllm else None)
    if way is RuntimeError:
        with pytest.raises(RuntimeError, match=r"sampler\.transfer=nccl needs a GPU"):
            started(running, transfer=transfer, synced=False)
    else:
        assert isinstance(started(running, transfer=transfer, synced=False)._transfer, way)


def test_the_address_that_servers_are_told_is_this_machines():
    assert nccl._own_address(Server("http://127.0.0.1:1", timeout=1)) == "127.0.0.1"


# ---- the start ----


def test_servers_may_come_up_later(servers, started, model, capsys, monkeypatch):
    (server,) = servers(1)
    monkeypatch.setattr("sgrpo_lightning.samplers.readiness.TELL_EVERY", 0.05)
    monkeypatch.setattr("sgrpo_lightning.samplers.readiness.LOOK_EVERY", 0.05)
    server.dead = True
    threading.Timer(0.25, setattr, (server, "dead", False)).start()
    started([server])
    assert f"waiting for a vLLM server since 0 s: {server.url}/health" in capsys.readouterr().out


def test_a_start_has_a_limit(servers, started):
    (server,) = servers(1)
    server.dead = True
    with pytest.raises(SamplerError, match=f"within 0.5 s: {server.url}.*start it with scripts/vllm_server.sh"):
        started([server])


def test_a_server_that_a_killed_trainer_left_paused_goes_on(servers, started, model):
    (server,) = servers(1)
    server.paused = True
    check(generate(started([server]), model))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dev_mode": False}, "runs without VLLM_SERVER_DEV_MODE=1; start it with scripts/vllm_server.sh MODEL"),
        ({"scale_out": False}, "runs without --enable-scale-out; start it with scripts/vllm_server.sh MODEL"),
        (
            {"config": {"model_config": {"logprobs_mode": "raw_logprobs"}, "scheduler_config": {}}},
            "must run with --logprobs-mode processed_logprobs.*got raw_logprobs; start it with",
        ),
    ],
)
def test_how_a_server_has_to_run(servers, started, change, message):
    (server,) = servers(1)
    vars(server).update(change)
    with pytest.raises(RuntimeError, match=message):
        started([server])


def test_prompt_and_completion_have_to_fit(servers, started, model):
    message = "a prompt of {} tokens and max_new_tokens=60 need {}, but a server holds 64: .*--max-model-len {}"
    with pytest.raises(ValueError, match=message.format(9, 69, 69)):
        started(servers(1), max_new_tokens=60)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"urls": []}, "sampler.urls must be a list of different addresses"),
        ({"urls": "http://a:1"}, "sampler.urls must be a list of different addresses"),
        ({"urls": ["http://a:1", "http://a:1"]}, "sampler.urls must be a list of different addresses"),
        ({"urls": ["node:8000"]}, "sampler.urls must hold addresses as http://host:8000, got 'node:8000'"),
        ({"transfer": "ftp"}, "sampler.transfer must be one of auto, files, nccl, got 'ftp'"),
        ({"dtype": "int8"}, "sampler.dtype must be null or one of bfloat16, float16, float32, got 'int8'"),
        ({"in_flight": 0}, "sampler.in_flight must be >= 1, got 0"),
    ],
)
def test_knobs_that_cannot_be(knobs, message):
    with pytest.raises(ValueError, match=message):
        VLLMServerSampler(**{"max_new_tokens": 4, "urls": ["http://a:1"], "weights_dir": "w", **knobs})


# ---- two ranks ----


def test_no_rank_samples_before_the_servers_have_the_weights(servers, tmp_path):
    """Rank 0 alone sends, though it takes long; an error of it ends both, and each has its own samples."""
    running = servers(2)
    for server in running:
        server.collective_rpc = lambda query, body, load=server.collective_rpc: (time.sleep(0.3), load(query, body))[1]
    script = Path(__file__).with_name("server_ranks.py")
    urls = [server.url for server in running]
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path), str(rank), *urls], stdout=subprocess.PIPE, text=True
        )
        for rank in (0, 1)
    ]
    zero, one = [rank.communicate(timeout=100)[0].splitlines() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    problem = "ValueError: the weights do not fit the model that the sampler was started with: extra is unknown"
    assert (zero, one) == ([problem], [f"SamplerError: on rank 0: {problem}"])
    for server in running:
        phases = [call for call in server.calls if call in ("/pause", "/resume", GENERATE)]
        assert phases[:4] == ["/resume", GENERATE, "/pause", "/resume"]  # rank 0 examines it, then sends
        again = 4 + phases[4:].index("/pause")
        assert again > 4
        assert phases[again : again + 2] == ["/pause", "/resume"]
        assert set(phases[4:again]) == set(phases[again + 2 :]) == {GENERATE}
    bodies = [body["sampling_params"] for server in running for body in server.asked]
    seeds = [params["seed"] for params in bodies if params["max_tokens"] == 6]
    assert len(set(seeds)) == len(seeds) == 2 * 2 * 6
    assert not list((tmp_path / "weights").iterdir())


# ---- the script that starts servers ----


def launched(tmp_path, *arguments, knows_vllm=0, **environment):
    """What scripts/vllm_server.sh prints, with a Python that prints how it was called."""
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\n[ "$1" != -c ] || exit {knows_vllm}\n'
        'echo "$VLLM_SERVER_DEV_MODE|$CUDA_VISIBLE_DEVICES|$*"\nsleep 0.3\n'
    )
    python.chmod(0o755)
    command = ["bash", str(ROOT / "scripts" / "vllm_server.sh"), *arguments]
    path = {"PATH": "/usr/bin:/bin", "PYTHON": str(python)}
    return subprocess.run(command, env=path | environment, capture_output=True, text=True, timeout=20)


def test_the_script_starts_a_server_for_each_group_of_gpus(tmp_path):
    done = launched(tmp_path, "a/model", "--max-model-len", "99", CUDA_VISIBLE_DEVICES="4,5,6,7", GPUS_PER_SERVER="2")
    lines = sorted(done.stdout.splitlines())
    assert lines[-1] == "sampler=vllm_server 'sampler.urls=[http://127.0.0.1:8000,http://127.0.0.1:8001]'"
    assert [line.split("|")[:2] for line in lines[:-1]] == [["1", "4,5"], ["1", "6,7"]]
    for port, line in zip((8000, 8001), lines, strict=False):
        for option in (
            f"serve a/model --port {port} --tensor-parallel-size 2",
            '--weight-transfer-config {"backend": "nccl"}',
            "--logprobs-mode processed_logprobs --skip-tokenizer-init --enable-scale-out --max-model-len 99",
        ):
            assert option in line


def test_the_script_does_without_gpus(tmp_path):
    done = launched(tmp_path, "a/model", knows_vllm=1, PORT="9000", CUDA_VISIBLE_DEVICES="")
    (line,) = [line for line in done.stdout.splitlines() if "|" in line]
    assert line.startswith("1||-m vllm.entrypoints.openai.api_server --model a/model --port 9000 --host 127.0.0.1")
    assert "weight-transfer" not in line


def test_the_script_says_how_it_is_used(tmp_path):
    done = launched(tmp_path)
    assert (done.returncode, "scripts/vllm_server.sh MODEL" in done.stderr) == (2, True)
    done = launched(tmp_path, "a/model", CUDA_VISIBLE_DEVICES="0,1,2", GPUS_PER_SERVER="2")
    assert (done.returncode, done.stderr) == (2, "GPUS_PER_SERVER must divide the number of GPUs = 3, got 2\n")
