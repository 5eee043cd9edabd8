"""How much to fuzz, within which time, and how files are mutated. `make fuzz` sets FUZZ=long."""

import faulthandler
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

LONG = os.environ.get("FUZZ") == "long"
# fmt: off
# Pieces of files that readers have stumbled over.
TOKENS = (
    b"\n", b"\r", b"\r\n", b"\t", b" ", b"", b'"', b'""', b",", b"\x00", b"\xff", b"\xc3", b"\xef\xbb\xbf", b"</s>",
    b"\xe2\x80\xa8", b"\xed\xa0\x80", b"\\", b"\\ud800", b"\\uDFFF\\ud800", b"\\u0000", b"\\n", b"<br />", b"{}",
    b"0", b"-1", b"1_0", b"1e400", b"-1e-400", b"nan", b"NaN", b"Infinity", b"-Infinity", b"null", b"true", b"9" * 20,
    b"1" * 5000, b"[" * 3000, b'{"a":' * 3000, b"x" * 3000, b"\xd9\xa3", b"__SILENCE__", b"your persona:", b"\x1b[31m",
)
# Stands for a number of 5,000 digits, which `json.dumps` does not write.
DIGITS = "5,000 digits"
# What a field of JSON or YAML is replaced with.
ODD_VALUES = (
    None, True, False, 0, -1, 1, 3, 2.5, 1e300, float("inf"), float("nan"), 10**19, -(10**30), "", "x", "1_0", "\ud800",
    DIGITS, "é\u2028", "-1", "x" * 3000, [], [[]], ["x"], [None], [3, "x"], {}, {"x": 1}, {"": None}, "..", "/", "\x00",
)
ODD_ENDINGS = ("\ud800", "\x00", "\u2028", "\n", "</s>", "x" * 3000)
# fmt: on


def fuzzed(short: int, long: int, shrink: bool = True) -> Callable[[Any], Any]:
    """Settings of a test: the same examples in every run of `make test`; in `make fuzz` those of --hypothesis-seed.

    `shrink` a failing example to a small one; too slow where an example is a whole command.
    """
    return settings(
        max_examples=long if LONG else short,
        derandomize=not LONG,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )


class HangsError(BaseException):
    """An example took too long. Not an Exception, so that no handler of the program takes it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise HangsError after these seconds of computation: others may use the machine.

    A process that waits ten times as long, or does not return to Python, ends with a traceback.
    """

    def stop(*_: object) -> None:
        raise HangsError(f"no result after {seconds} seconds of computation")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    faulthandler.dump_traceback_later(10 * seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@st.composite
def mutated(draw: st.DrawFn, content: bytes) -> bytes:
    """`content` after a few edits: parts cut, repeated, moved, replaced by `TOKENS`, or with a flipped bit."""
    for _ in range(draw(st.integers(1, 4))):
        # Hypothesis prefers small numbers of a large range.
        start = min(len(content), draw(st.integers(0, 100)) * len(content) // 100 + draw(st.integers(0, 50)))
        end = min(len(content), start + draw(st.sampled_from((0, 1, 1, 5, 40, 10**6))))
        kind = draw(st.sampled_from(("token", "token", "token", "cut", "repeat", "move", "flip", "truncate")))
        if kind == "token":
            content = content[:start] + draw(st.sampled_from(TOKENS)) + content[end:]
        elif kind == "cut":
            content = content[:start] + content[end:]
        elif kind == "repeat":
            content = content[:end] + content[start:end] + content[end:]
        elif kind == "move":
            content = content[start:end] + content[:start] + content[end:]
        elif kind == "flip" and start < len(content):
            content = content[:start] + bytes([content[start] ^ 1 << draw(st.integers(0, 7))]) + content[start + 1 :]
        elif kind == "truncate":
            content = content[:start]
    return content


@st.composite
def misshapen(draw: st.DrawFn, value: Any) -> Any:
    """A JSON value with one entry, at any depth, replaced by an odd one, left out or renamed."""
    if isinstance(value, dict | list) and value and draw(st.integers(0, 3)):
        keys = [*value] if isinstance(value, dict) else range(len(value))
        key = draw(st.sampled_from(keys))
        copy = value.copy()
        kind = draw(st.sampled_from(("inside", "inside", "inside", "left out", "renamed")))
        if kind == "inside":
            copy[key] = draw(misshapen(value[key]))
        elif kind == "renamed" and isinstance(copy, dict):
            copy[draw(st.sampled_from(("", "x", "auto_map", "label", "_commit_hash")))] = copy.pop(key)
        else:
            del copy[key]
        return copy
    if isinstance(value, str) and draw(st.booleans()):
        return value + draw(st.sampled_from(ODD_ENDINGS))
    return draw(st.sampled_from(ODD_VALUES))
