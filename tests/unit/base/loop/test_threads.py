"""The broker's pools of threads."""

import threading

from skep.base.loop.threads import ResizablePool, Threads


def running_at_once(pool: ResizablePool, count: int) -> bool:
    """Whether so many pieces of work run at the same time: each waits for all others."""
    barrier = threading.Barrier(count, timeout=60)
    return sorted(future.result(60) for future in [pool.submit(barrier.wait) for _ in range(count)]) == [*range(count)]


def test_a_pool_grows_and_shrinks_and_loses_no_work():
    pool = ResizablePool(1, "test")
    gate = threading.Event()
    first, queued = pool.submit(gate.wait, 60), pool.submit(lambda: "queued")
    pool.resize(3)
    assert running_at_once(pool, 3)
    assert not first.done()
    gate.set()
    assert queued.result(60) == "queued"
    pool.resize(1)
    assert pool.submit(lambda: "last").result(60) == "last"
    pool.shutdown()


def test_every_pool_whose_number_is_an_option_is_resized():
    threads = Threads(1)
    threads.resize(2)
    for pool in (threads.syncs, threads.reads, threads.background):
        assert running_at_once(pool, 2)
    threads.shut_down()
