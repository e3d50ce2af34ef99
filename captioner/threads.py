"""Work on many things at once, each in a thread with its share of the processor's cores."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Found = TypeVar("Found")


def batches_at_once(number: int, device: torch.device) -> int:
    """How many of so many batches a network should see at once: two on a CPU with cores for both.

    More win nothing, and each holds its activations; one batch alone, and what a GPU does, want it all.
    """
    return 2 if number > 1 and device.type == "cpu" and torch.get_num_threads() > 1 else 1


def in_turn(work: Callable[[Item], Found], items: Iterable[Item], at_once: int) -> Iterator[Found]:
    """``work`` of every item, in order, while that of the next is being done.

    A network of one thread leaves a core idle less often than one that all cores wait for: between two
    of its products, and in a search, whose steps are small.

    Args:
        work: on a CPU; what it does with one item has nothing to do with the others.
        items: taken when there is a thread for them.
        at_once: threads; 1 is the caller's own, with all cores.
    """
    if at_once == 1:
        yield from map(work, items)
        return
    cores = torch.get_num_threads()
    # Autocast is each thread's own.
    kind, narrow = torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu")

    def begin() -> None:
        # A thread takes the number last set anywhere when it first asks for it, whatever was set in it
        # before: asked here, that cannot be another's.
        torch.get_num_threads()
        torch.set_num_threads(max(1, cores // at_once))
        torch.set_autocast_dtype("cpu", kind)
        torch.set_autocast_enabled("cpu", narrow)

    waiting: deque[Future[Found]] = deque()
    with ThreadPoolExecutor(at_once, "work", begin) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                # What ``begin`` says is also said of threads that others start later.
                torch.set_num_threads(cores)
                if len(waiting) > at_once:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(cores)
