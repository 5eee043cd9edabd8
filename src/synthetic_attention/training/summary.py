"""Results in words, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..tasks import get_task
from ..tasks.types import written

__all__ = ["describe_dry_run", "describe_evaluation", "describe_training"]


def describe_evaluation(results: Mapping[str, Any]) -> str:
    """The scores of an evaluation, with their signatures where they have one."""
    task = get_task(results["task"])
    search = f", {results['beams']} beams, length penalty {results['length_penalty']}" if "beams" in results else ""
    skipped = f", {results['skipped']} malformed lines left out" if results["skipped"] else ""
    scores = [
        f"{label} {written(results[key])}  {results.get(f'{key}_signature', '')}".rstrip()
        for key, label in task.score_labels.items()
        if key in results
    ]
    scored = f"{results['examples']} {task.unit}" if results["examples"] else f"no {task.unit} with a label, no scores"
    return "\n".join(
        [
            f"{results['split']}: {scored}{search}{skipped}",
            *(scores if results["examples"] else []),
            f"predictions: {results['predictions'] or 'not written'}",
            *(f"to read: {path}" for path in results["files"]),
        ]
    )


def describe_training(metrics: Mapping[str, Any]) -> str:
    """How long it took, how fast it was, how good the best model is."""
    task = get_task(metrics["task"])
    speed = (
        f"{metrics['steps']} steps in {metrics['minutes']:.1f} minutes, {metrics['tokens_per_second']:,.0f} "
        f"{task.tokens_name}/s"
    )
    best = metrics["best"]
    if best is None:
        return f"{speed}; not validated yet"
    mean = f" (mean of the weights at {', '.join(map(str, best['averaged']))})" if "averaged" in best else ""
    return f"{speed}; best at step {best['step']}{mean}: validation {task.headline(best)}"


def format_seconds(seconds: float) -> str:
    """3725 → 1:02:05."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def describe_dry_run(plan: Mapping[str, Any]) -> str:
    """What a run would be and cost, as a table of two columns."""
    task = get_task(plan["task"])
    accumulated = f" of {plan['batches_per_step']} batches" if plan["batches_per_step"] > 1 else ""
    rows = {
        "parameters": f"{plan['parameters']:,} ({plan['trainable']:,} trained, {plan['in_synthesizers']:,} in "
        "synthesizers)",
        "vocabulary": f"{plan['vocabulary']:,} pieces",
        "an epoch": f"{plan['examples']:,} {task.unit}, {plan['tokens_per_epoch']:,} {task.tokens_name} in "
        f"{plan['batches_per_epoch']:,} batches",
        "training": f"{plan['steps']:,} steps{accumulated}, {plan['epochs']:.1f} epochs",
        "device": f"{plan['device']}, {plan['dtype']}",
        "speed": f"{plan['tokens_per_second']:,.0f} {task.tokens_name}/s over {plan['measured_steps']} steps",
        "memory": f"{_megabytes(plan['state_bytes'])} for weights, gradients and optimizer; at most "
        f"{_megabytes(plan['peak_bytes'])} in these steps, all told",
        "time": f"{format_seconds(plan['seconds'])}, validations not counted",
    }
    width = max(map(len, rows))
    return "\n".join(f"{name:<{width}}  {text}" for name, text in rows.items())


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"
