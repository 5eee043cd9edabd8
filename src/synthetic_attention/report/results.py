"""Results in words, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["describe_evaluation", "describe_training"]


def describe_evaluation(results: Mapping[str, Any]) -> str:
    """The scores of an evaluation, with their signatures."""
    return "\n".join(
        [
            f"{results['split']}: {results['sentences']} sentences, {results['beams']} beams, "
            f"length penalty {results['length_penalty']}",
            f"BLEU {results['bleu']:.2f}  {results['bleu_signature']}",
            f"chrF {results['chrf']:.2f}  {results['chrf_signature']}",
            f"predictions: {results['predictions'] or 'not written'}",
        ]
    )


def describe_training(metrics: Mapping[str, Any]) -> str:
    """How long it took, how fast it was, how good the best model is."""
    speed = (
        f"{metrics['steps']} steps in {metrics['minutes']:.1f} minutes, {metrics['tokens_per_second']:,.0f} source + "
        "target tokens/s"
    )
    best = metrics["best"]
    if best is None:
        return f"{speed}; not validated yet"
    return f"{speed}; best at step {best['step']}: validation BLEU {best['bleu']:.2f}, chrF {best['chrf']:.2f}"
