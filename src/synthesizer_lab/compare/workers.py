"""Call functions at the same time, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

import torch
from transformers.utils import logging

from ..errors import UserError
from ..training.callbacks import StopRequest

_K = TypeVar("_K")
_T = TypeVar("_T")
_GPUS = "CUDA_VISIBLE_DEVICES"
# Seconds between two looks at signals.
_INTERVAL = 0.5


def call_in_processes(
    calls: Mapping[_K, Callable[[], _T]], count: int, stop: StopRequest
) -> Generator[tuple[_K, _T | UserError]]:
    """Call functions in up to `count` processes; yields each result as it comes, a UserError of a killed process.

    Ctrl-C or SIGTERM, received by `stop`, goes to all processes as one SIGTERM, and no more are started.
    """
    waiting, running, is_stopping = deque(calls.items()), dict[Future[_T], tuple[_K, int]](), False
    count = min(count, len(calls))
    before = os.environ.get(_GPUS)
    gpus = before.split(",") if before else [str(number) for number in range(torch.cuda.device_count())]
    with stop.listening():
        try:
            while running or (waiting and stop.received is None):
                while waiting and len(running) < count and stop.received is None:
                    key, call = waiting.popleft()
                    slot = min({*range(count)} - {slot for _, slot in running.values()})
                    if gpus:
                        # The process uses one of the GPUs, in turn.
                        os.environ[_GPUS] = gpus[slot % len(gpus)]
                    running[_start(call, max(1, torch.get_num_threads() // count))] = key, slot
                for future in wait(running, _INTERVAL, FIRST_COMPLETED).done:
                    key, _ = running.pop(future)
                    try:
                        yield key, future.result()
                    except BrokenProcessPool:
                        # A process that does not listen yet ends with our SIGTERM.
                        if stop.received is None:
                            yield key, UserError("its process was killed")
                if stop.received is not None and not is_stopping:
                    is_stopping = True
                    _terminate()
        finally:
            if gpus:
                os.environ[_GPUS] = ",".join(gpus)
            # After an error, or a second signal.
            if running:
                _terminate()
                wait(running)


def _start(call: Callable[[], _T], threads: int) -> Future[_T]:
    """Call a function in a new process. A pool for each: a process that is killed breaks its pool."""
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _prepare, (threads,))
    # A process inherits which signals are blocked: it never receives Ctrl-C, only our SIGTERM.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        future = pool.submit(call)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    pool.shutdown(wait=False)
    return future


def _prepare(threads: int) -> None:
    threading.Thread(target=_end_without_main, daemon=True).start()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(threads)


def _end_without_main() -> None:
    """End this process if the main one was killed; its run continues from the last checkpoint next time."""
    main = multiprocessing.parent_process()
    assert main is not None
    main.join()
    os._exit(1)


def _terminate() -> None:
    for process in multiprocessing.active_children():
        process.terminate()
