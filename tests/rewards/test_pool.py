"""Workers that hang, exhaust memory, die or are killed: every item has an end, and the pool keeps its size.

The work is `eval`, of which every worker knows, on expressions that misbehave.
"""

import doctest
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from sgrpo_lightning.rewards import pool as pool_module
from sgrpo_lightning.rewards.pool import SMALL, Result, WorkerPool

HANG = "9**9**9**9"  # in C, where no signal handler of Python runs
KILL = "__import__('os').kill(__import__('os').getpid(), 9)"
PID = "(__import__('time').sleep(0.1), __import__('os').getpid())[1]"


def running():
    """Process ids of workers that live."""
    return {process.pid for process in multiprocessing.active_children() if process.name == "pebble_pool_worker"}


def settles_at(count):
    """Whether there are soon as many workers."""
    deadline = time.monotonic() + 30
    while len(running()) != count and time.monotonic() < deadline:
        time.sleep(0.02)
    return len(running()) == count


@pytest.fixture
def pool():
    with WorkerPool(workers=2, seconds=20.0, megabytes=256) as pool:
        yield pool
    assert settles_at(0)


@pytest.fixture
def hasty():
    """A pool for items that hang; others may take a second."""
    with WorkerPool(workers=2, seconds=1.0) as pool:
        yield pool
    assert settles_at(0)


def test_values_come_in_order(pool):
    assert pool.map(eval, [f"{n} * {n}" for n in range(50)]) == [Result(n * n) for n in range(50)]
    assert pool.map(eval, []) == []


def test_one_worker_serves_small_batches_and_the_others_start_with_a_larger_one():
    with WorkerPool(workers=3, seconds=5.0) as pool:
        assert not running()
        small = {result.value for result in pool.map(eval, [PID] * (SMALL - 1))}
        assert small == running()
        assert len(small) == 1
        large = {result.value for result in pool.map(eval, [PID] * 24)}
        assert large == running()
        assert len(large) == 3
        assert {result.value for result in pool.map(eval, [PID] * (SMALL - 1))} <= large
        pool.close()
        assert settles_at(0)
        assert pool.map(eval, ["1"]) == [Result(1)]
    assert settles_at(0)


def test_hangs_in_a_row_cost_their_own_limit_and_no_worker(hasty):
    before = {result.value for result in hasty.map(eval, [PID] * 16)}
    assert hasty.map(eval, [HANG] * 5 + ["1"] * 5) == [Result(failure="timeout")] * 5 + [Result(1)] * 5
    assert settles_at(2)
    after = {result.value for result in hasty.map(eval, [PID] * 16)}
    assert after == running()
    assert len(before) == len(after) == 2
    assert not before & after


def test_the_time_limit_is_that_of_one_item():
    with WorkerPool(workers=1, seconds=2.0) as pool:
        assert pool.map(eval, ["__import__('time').sleep(0.6) or 1"] * 5) == [Result(1)] * 5


@pytest.mark.parametrize("bomb", ["bytearray(2**31)", "[bytearray(2**20) for _ in range(2**11)]"])
def test_memory_is_limited_for_each_item(pool, bomb):
    fits = "len(bytearray(180 * 2**20))"
    first, *others = pool.map(eval, [bomb, fits, fits, bomb, fits])
    assert first == others[2] == Result(failure="error", message="MemoryError: ")
    assert [others[0], others[1], others[3]] == [Result(180 * 2**20)] * 3


def test_what_an_earlier_item_left_in_memory_does_not_count():
    kept = "len(__import__('builtins').__dict__.setdefault('kept', bytearray(180 * 2**20)))"
    with WorkerPool(workers=1, seconds=20.0, megabytes=256) as pool:
        assert pool.map(eval, [kept, "len(bytearray(180 * 2**20))"]) == [Result(180 * 2**20)] * 2


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("__import__('sys').exit(3)", "SystemExit: 3"),
        ("__import__('builtins').exec('raise KeyboardInterrupt')", "KeyboardInterrupt: "),
        ("__import__('builtins').exec('raise TimeoutError(7)')", "TimeoutError: 7"),
        (KILL, "the worker died with exit code -9"),
        ("__import__('os')._exit(5)", "the worker died with exit code 5"),
        ("__import__('os').abort()", "the worker died with exit code -6"),
    ],
)
def test_an_error_is_that_of_its_item_alone(pool, item, message):
    assert pool.map(eval, ["1", item, "2"]) == [Result(1), Result(failure="error", message=message), Result(2)]


def test_a_worker_that_leaves_without_an_error_has_run_out_of_time(hasty):
    assert hasty.map(eval, ["1", "__import__('os')._exit(0)", "2"])[1:] == [Result(failure="timeout"), Result(2)]


def test_what_cannot_be_pickled_is_an_error(pool):
    there, back, fine = pool.map(eval, [lambda: 1, "lambda: 1", "1"])
    assert (there.failure, back.failure, fine) == ("error", "error", Result(1))


def test_idle_workers_that_are_killed_come_back(pool):
    for _ in range(2):
        pool.map(eval, ["1"] * SMALL)
        for pid in running():
            os.kill(pid, signal.SIGKILL)
        assert pool.map(eval, ["1"] * 20) == [Result(1)] * 20


def test_workers_that_cannot_begin_are_errors_and_not_a_stall():
    with WorkerPool(workers=1, seconds=5.0, preload=["no_such_module"]) as pool:
        assert pool.map(eval, ["1"]) == [Result(failure="error", message="the workers died, twice")]


def test_threads_share_a_pool(pool):
    results = {}

    def work(name):
        results[name] = pool.map(eval, [f"{name} * {n}" for n in range(20)])

    threads = [threading.Thread(target=work, args=(name,)) for name in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {name: [Result(name * n) for n in range(20)] for name in range(6)}


def test_a_worker_whose_parent_is_gone_ends_by_itself(hasty):
    """By the alarm, which is set for 2 * 1 + 10 seconds and not answered in Python; nor is a SIGTERM."""
    asked = ["getitimer(0)[0]", "getsignal(14)", "getsignal(15)"]
    alarm, *handlers = hasty.map(eval, [f"__import__('signal').{call}" for call in asked])
    assert 11 < alarm.value <= 12
    assert handlers == [Result(signal.SIG_DFL)] * 2


PROGRAMS = {
    "leaves its workers running": ("pool.map(eval, ['1'] * 20)", []),
    "is interrupted": (
        """
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
        pool.map(eval, ['1'] * 20)
        threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            pool.map(eval, [HANG] * 3000)
        except KeyboardInterrupt:
            print(pool.map(eval, ['1'])[0].value)
        """,
        ["1"],
    ),
    "forks while a thread uses the pool": (
        """
        thread = threading.Thread(target=pool.map, args=(eval, ["__import__('time').sleep(2)"]))
        thread.start()
        time.sleep(0.2)
        child = multiprocessing.get_context('fork').Process(target=lambda: print(pool.map(eval, ['2'])[0].value))
        child.start()
        child.join()
        print(pool.map(eval, ['3'])[0].value)
        """,
        ["2", "3"],
    ),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_ends_that(program, tmp_path):
    """With the exit code 0, and no process that keeps its output open."""
    body, printed = PROGRAMS[program]
    imports = "import multiprocessing, os, signal, threading, time\nfrom sgrpo_lightning.rewards.pool import WorkerPool"
    main = f"HANG = '{HANG}'\npool = WorkerPool(workers=2, seconds=30.0)\n{textwrap.dedent(body)}\nprint('end')"
    script = tmp_path / "program.py"
    script.write_text(f"{imports}\nif __name__ == '__main__':\n{textwrap.indent(main, '    ')}\n")
    done = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    assert done.stdout.split() == [*printed, "end"]


def test_a_pool_that_is_dropped_stops():
    pool = WorkerPool(workers=1, seconds=5.0)
    assert pool.map(eval, ["1", "1 / 0"])[0] == Result(1)
    del pool
    assert settles_at(0)


@pytest.mark.parametrize("name", ["workers", "seconds", "megabytes"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_a_limit_that_is_none_is_refused(name, value):
    settings = {"workers": 1, "seconds": 1.0, "megabytes": 1, name: value}
    with pytest.raises(ValueError, match=f"{name} must be > 0, got {value}"):
        WorkerPool(**settings)


def test_doctests():
    assert doctest.testmod(pool_module) == doctest.TestResults(failed=0, attempted=1)
