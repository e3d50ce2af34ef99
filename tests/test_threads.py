"""Work in several threads against the same work in one."""

import threading
import time

import pytest
import torch

from captioner.threads import batches_at_once, in_turn


@pytest.fixture(autouse=True)
def _four_cores():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_what_is_found_comes_in_order_however_long_each_takes(at_once):
    def work(number):
        time.sleep(0.02 * (number % 3 == 0))
        return number * number

    assert list(in_turn(work, range(20), at_once)) == [n * n for n in range(20)]
    assert list(in_turn(work, [], at_once)) == []


def cores(_=None):
    return torch.get_num_threads(), threading.current_thread().name


def test_each_thread_has_its_share_of_the_cores_and_the_caller_all():
    found = set(in_turn(cores, range(8), 2))
    assert {share for share, _ in found} == {2}
    assert all(name.startswith("work") for _, name in found)
    assert torch.get_num_threads() == 4
    later = []
    thread = threading.Thread(target=lambda: later.append(cores()[0]))
    thread.start()
    thread.join()
    assert later == [4]
    [(share, name)] = in_turn(cores, [0], 1)
    assert (share, name) == (4, threading.current_thread().name)


def test_what_the_caller_says_meanwhile_does_not_reach_a_thread(monkeypatch):
    # The thread has said its number before the caller says its own, and asks for it only then.
    said, say = threading.Event(), torch.set_num_threads

    def late(number):
        if threading.current_thread() is threading.main_thread():
            time.sleep(0.1)
            say(number)
            said.set()
        else:
            say(number)

    def work(_):
        assert said.wait(timeout=30)
        return torch.get_num_threads()

    monkeypatch.setattr(torch, "set_num_threads", late)
    assert list(in_turn(work, range(1), 2)) == [2]


def test_no_more_is_taken_than_there_are_threads_for():
    taken = []

    def items():
        for number in range(50):
            taken.append(number)
            yield number

    stream = in_turn(lambda n: n, items(), 2)
    for number in range(10):
        assert next(stream) == number
        assert len(taken) <= number + 3
    stream.close()
    assert len(taken) <= 12
    assert torch.get_num_threads() == 4
    assert not [t for t in threading.enumerate() if t.name.startswith("work")]


def test_an_error_comes_in_its_turn_and_ends_it():
    def work(number):
        if number == 3:
            raise ValueError("three")
        return number

    stream = in_turn(work, range(100), 2)
    assert [next(stream) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(stream)
    assert not [t for t in threading.enumerate() if t.name.startswith("work")]


def test_precision_is_the_callers():
    one = torch.ones(2, 2)
    with torch.autocast("cpu", torch.bfloat16):
        kinds = set(in_turn(lambda _: (one @ one).dtype, range(4), 2))
    assert kinds == {torch.bfloat16}
    assert set(in_turn(lambda _: (one @ one).dtype, range(4), 2)) == {torch.float32}


def test_two_batches_at_once_where_there_are_two_and_cores_for_both():
    assert batches_at_once(2, torch.device("cpu")) == batches_at_once(9, torch.device("cpu")) == 2
    assert batches_at_once(1, torch.device("cpu")) == 1
    assert batches_at_once(9, torch.device("cuda")) == 1
    torch.set_num_threads(1)
    assert batches_at_once(9, torch.device("cpu")) == 1
