"""The benchmark of generation, on models of a few thousand parameters."""

import pytest

from synthetic_attention.benchmark.generation import Setting, profile_steps, run
from synthetic_attention.benchmark.generation_tables import generation_records

TINY = {"batch": 3, "prompt": 2, "new_tokens": 4, "layers": 1, "width": 8, "heads": 2, "vocabulary": 20}


def test_random_and_dense_cache_half_of_what_vanilla_and_gpt2_do() -> None:
    results = run(Setting(**TINY), ["random", "dense", "random+vanilla", "vanilla"], repeats=1)
    # The last token is never an input.
    values = 3 * (2 + 4 - 1) * 8 * 4
    assert {result.name: result.cache_bytes for result in results} == {
        "gpt2": 2 * values,
        "random": values,
        "dense": values,
        "random+vanilla": 2 * values,
        "vanilla": 2 * values,
    }
    sizes = {result.name: result.parameters for result in results}
    assert sizes["gpt2"] == sizes["vanilla"]
    assert results[0].ratio == (1, 1, 1)
    record = generation_records(results)[1]
    assert (record["name"], record["new_tokens"], record["dtype"]) == ("random", 4, "float32")


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_translation_with_beams_beside_marian(cache: str) -> None:
    results = run(Setting(**TINY, task="translation", beams=2, cache=cache), ["dense"], repeats=1)
    assert [result.name for result in results] == ["marian", "dense"]
    slots, source = 4, 2
    values = 2 * 3 * slots * 8 * 4
    cross = 2 * (2 * 3 * source * 8 * 4)
    assert results[1].cache_bytes == values + cross
    assert results[0].cache_bytes == 2 * values + cross


def test_a_profile_of_a_step() -> None:
    profiles = profile_steps(Setting(**TINY), ["random"])
    assert [profile.name for profile in profiles] == ["gpt2", "random"]
    assert all(profile.step > 0 and profile.operations["addmm"] > 0 for profile in profiles)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"task": "chess"}, "task='chess'; expected one of: language-modeling, translation"),
        ({"cache": "none"}, "cache='none'; expected one of: dynamic, static"),
        ({"beams": 0}, "beams=0; expected at least 1"),
        ({"vocabulary": 3}, "more than 3"),
        ({"width": 9}, "heads that divide the width"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Setting(**{**TINY, **fields})
