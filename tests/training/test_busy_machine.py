"""The warning of a busy machine, from readings that are made up."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from synthetic_attention.training import callbacks
from synthetic_attention.training.callbacks import BusyMachine, Load, ProgressReport, read_load

# Cores that others use, and tokens per second, in intervals of ten seconds on two cores.
QUIET, BUSY = 0.1, 1.0


def warnings(*intervals: tuple[float, float], threads: int, monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)

    def readings() -> Iterator[Load]:
        load = Load(5.0, 7.0, 100.0)
        yield load
        for others, _ in intervals:
            load = Load(load.wall + 10, load.own + 15, load.everyone + 15 + 10 * others)
            yield load

    machine = BusyMachine(readings().__next__, cores=2)
    return [machine.warning(speed) for _, speed in intervals]


def test_a_collapse_under_the_load_of_others_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calm, slow = (QUIET, 1000.0), (BUSY, 100.0)
    first, second, third, fourth = warnings(calm, slow, slow, calm, threads=2, monkeypatch=monkeypatch)
    assert (first, third, fourth) == (None, None, None)
    assert second is not None
    assert all(fact in second for fact in ("1.0 of 2 cores", "2 threads", "100 tokens/s, 1,000 before", "--threads 1"))
    # Also where it was never quiet.
    assert [*map(bool, warnings(slow, slow, threads=2, monkeypatch=monkeypatch))] == [True, False]


@pytest.mark.parametrize(
    ("intervals", "threads"),
    [
        # Slower for another reason; as fast as before; a thread has a core of its own.
        ([(QUIET, 1000.0), (QUIET, 100.0)], 2),
        ([(QUIET, 1000.0), (BUSY, 900.0)], 2),
        ([(BUSY, 100.0), (BUSY, 10.0)], 1),
    ],
)
def test_nothing_is_said_otherwise(
    intervals: list[tuple[float, float]], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert warnings(*intervals, threads=threads, monkeypatch=monkeypatch) == [None, None]


def test_only_the_load_on_cores_of_this_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a job of a batch system, whose neighbors have other cores."""
    times = [SimpleNamespace(user=seconds, nice=0.0, system=0.0) for seconds in (1.0, 2.0, 100.0)]
    monkeypatch.setattr(callbacks, "usable_cores", lambda: [0, 1])
    monkeypatch.setattr(callbacks.psutil, "cpu_times", lambda percpu: times)
    assert read_load().everyone == 3.0


def test_the_load_of_this_machine_can_be_read() -> None:
    before = read_load()
    sum(range(10**6))
    after = read_load()
    assert after.wall > before.wall
    assert after.own > before.own
    assert after.everyone >= before.everyone


def test_the_progress_report_has_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(callbacks, "BusyMachine", lambda: SimpleNamespace(warning=lambda speed: f"busy at {speed}"))
    args: Any = SimpleNamespace(use_cpu=True, max_steps=9, minutes=None)
    state: Any = SimpleNamespace(is_world_process_zero=True, global_step=3)
    report = ProgressReport()
    report.on_train_begin(args, state, None)
    logs = {"loss": 1.0, "minutes": 0.1, "learning_rate": 0.1, "tokens_per_second": 12.5}
    report.on_log(args, state, None, logs=logs)
    assert "busy at 12.5\n" in capsys.readouterr().err
