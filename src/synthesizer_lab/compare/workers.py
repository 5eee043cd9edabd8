"""Train several runs of a comparison at the same time, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
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


@dataclass
class _Worker:
    """A process that trains one run. `slot` is a number below the number of workers."""

    process: SpawnProcess
    results: Connection
    slot: int
    is_stopping: bool = False

    @classmethod
    def start(cls, train: Train, slot: int, threads: int) -> _Worker:
        context = multiprocessing.get_context("spawn")
        receiver, sender = context.Pipe(duplex=False)
        # Daemons end with this process.
        process = context.Process(target=_work, args=(train, sender, threads), daemon=True)
        with _environment(slot):
            process.start()
        # Without it, the end of the process would not end the pipe.
        sender.close()
        return cls(process, receiver, slot)

    def stop(self) -> None:
        """Let the run stop at its next checkpoint; a second signal would interrupt it."""
        if not self.is_stopping:
            self.is_stopping = True
            self.process.terminate()

    def outcome(self) -> Outcome:
        """The result of a process that has ended."""
        self.process.join()
        try:
            found: Outcome = self.results.recv()
        except EOFError:
            # Killed before it could answer.
            found = UserError(f"its process ended with exit code {self.process.exitcode}")
        return found


def train_in_processes(runs: Sequence[tuple[_K, Train]], count: int) -> Generator[tuple[_K, Outcome]]:
    """Train `runs` in up to `count` processes; yields each as it ends, with its signal or its error.

    Ctrl-C or SIGTERM stops all at their next checkpoint, and no more are started. While the caller works on a result,
    it also raises KeyboardInterrupt there; closing the iterator waits for these checkpoints.
    """
    waiting, running, stop = deque(runs), dict[_K, _Worker](), StopRequest()
    count = min(count, len(runs))
    with stop.listening():
        try:
            while running or (waiting and stop.received is None):
                ended = [key for key, worker in running.items() if not worker.process.is_alive()]
                outcomes = [(key, running.pop(key).outcome()) for key in ended]
                while waiting and len(running) < count and stop.received is None:
                    key, train = waiting.popleft()
                    free = {*range(count)} - {worker.slot for worker in running.values()}
                    running[key] = _Worker.start(train, min(free), max(1, torch.get_num_threads() // count))
                if stop.received is not None:
                    for worker in running.values():
                        worker.stop()
                for key, outcome in outcomes:
                    stop.at_once = True
                    yield key, outcome if stop.received is None else stop.received
                    stop.at_once = False
                wait([worker.process.sentinel for worker in running.values()], _INTERVAL)
        except KeyboardInterrupt:
            for worker in running.values():
                worker.process.terminate()
            raise
        finally:
            for worker in running.values():
                worker.stop()
                worker.process.join()


def _work(train: Train, results: Connection, threads: int) -> None:
    # Ctrl-C in a terminal goes to the group of the main process, which stops this one.
    os.setpgrp()
    main = multiprocessing.parent_process()
    assert main is not None
    threading.Thread(target=_stop_without, args=(main.sentinel,), daemon=True).start()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(threads)
    try:
        results.send(train())
    except (UserError, OSError) as error:
        results.send(UserError(str(error)))


def _stop_without(main: int) -> None:
    """Stop this process at its next checkpoint if the main process is killed."""
    wait([main])
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def _environment(slot: int) -> Iterator[None]:
    """A process that starts inside uses one of the GPUs, in turn, and ignores Ctrl-C while it imports."""
    before = os.environ.get(_GPUS)
    gpus = before.split(",") if before else [str(number) for number in range(torch.cuda.device_count())]
    handler = signal.getsignal(signal.SIGINT)
    try:
        if gpus:
            os.environ[_GPUS] = gpus[slot % len(gpus)]
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if before is not None:
            os.environ[_GPUS] = before
        elif gpus:
            del os.environ[_GPUS]
