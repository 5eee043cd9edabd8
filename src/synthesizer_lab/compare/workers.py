"""Train several runs of a comparison at the same time, in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection
from multiprocessing.synchronize import Event
from typing import TypeVar

import torch
from transformers.utils import logging

from ..errors import UserError
from ..training.callbacks import StopRequest

_K = TypeVar("_K")
# Trains one run; returns the signal that stopped it, if one did.
Train = Callable[[], int | None]
Outcome = int | UserError | None
_GPUS = "CUDA_VISIBLE_DEVICES"
# Seconds between two looks at signals.
_INTERVAL = 0.5


def train_in_processes(runs: Mapping[_K, Train], count: int, stop: StopRequest) -> Generator[tuple[_K, Outcome]]:
    """Train `runs` in up to `count` processes; yields each as it ends, with its signal or its error.

    After `stop` has received a signal, or if the iterator is closed, all runs stop at their next checkpoint.
    """
    count = min(count, len(runs)) or 1
    threads, context = max(1, torch.get_num_threads() // count), multiprocessing.get_context("spawn")
    stopping = context.Event()
    pool = ProcessPoolExecutor(count, context, _prepare, (threads, stopping))
    try:
        keys = {}
        for number, (key, train) in enumerate(runs.items()):
            # Each of the first runs starts a process.
            with _environment(number):
                keys[pool.submit(_work, train)] = key
        running = {*keys}
        while running and stop.received is None:
            done, running = wait(running, _INTERVAL, FIRST_COMPLETED)
            for future in done:
                outcome: Outcome
                try:
                    outcome = future.result()
                except (UserError, OSError) as error:
                    outcome = UserError(str(error))
                except BrokenProcessPool:
                    outcome = UserError("a process of the comparison was killed; the others have stopped too")
                yield keys[future], outcome
    finally:
        stopping.set()
        for process in multiprocessing.active_children():
            process.terminate()
        pool.shutdown(cancel_futures=True)


def _prepare(threads: int, stopping: Event) -> None:
    global _stopping
    _stopping = stopping
    # Ctrl-C in a terminal goes to the group of the main process, which stops this one. An idle process stays.
    os.setpgrp()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    main = multiprocessing.parent_process()
    assert main is not None
    threading.Thread(target=lambda: (connection.wait([main.sentinel]), os._exit(1)), daemon=True).start()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(threads)


_stopping: Event


def _work(train: Train) -> int | None:
    # Until the training handles the signal itself.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return signal.SIGTERM if _stopping.is_set() else train()
    except KeyboardInterrupt:
        return signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


@contextmanager
def _environment(slot: int) -> Iterator[None]:
    """A process that starts inside uses one of the GPUs, in turn, and ignores Ctrl-C while it imports."""
    before = os.environ.get(_GPUS)
    gpus = before.split(",") if before else [str(number) for number in range(torch.cuda.device_count())]
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        if gpus:
            os.environ[_GPUS] = gpus[slot % len(gpus)]
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if before is not None:
            os.environ[_GPUS] = before
        elif gpus:
            del os.environ[_GPUS]
