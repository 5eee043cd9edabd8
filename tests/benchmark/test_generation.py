"""The benchmark of generation, on models of a few thousand parameters."""

from synthesizer_lab.benchmark.generation import GenerationCase, measure_generation

TINY = {"batch": 3, "prompt": 2, "new_tokens": 4, "layers": 1, "width": 8, "heads": 2, "vocabulary": 20}


def test_random_and_dense_cache_half_as_much_as_vanilla_and_gpt2() -> None:
    results = measure_generation([GenerationCase(**TINY)], ["random", "dense", "random+vanilla", "vanilla"], repeats=1)
    # The last token is never an input.
    values = 3 * (2 + 4 - 1) * 8 * 4
    assert {result["name"]: result["cache_bytes"] for result in results} == {
        "gpt2": 2 * values,
        "random": values,
        "dense": values,
        "random+vanilla": 2 * values,
        "vanilla": 2 * values,
    }
    sizes = {result["name"]: result["parameters"] for result in results}
    assert sizes["gpt2"] == sizes["vanilla"]
    assert results[0]["ratio"] == (1, 1, 1)
    record = results[1]
    assert (record["name"], record["new_tokens"], record["dtype"]) == ("random", 4, "float32")


def test_translation_with_beams_and_marian() -> None:
    results = measure_generation([GenerationCase(**TINY, task="translation", num_beams=2)], ["dense"], repeats=1)
    assert [result["name"] for result in results] == ["marian", "dense"]
    slots, source = 4, 2
    values = 2 * 3 * slots * 8 * 4
    cross = 2 * (2 * 3 * source * 8 * 4)
    assert results[1]["cache_bytes"] == values + cross
    assert results[0]["cache_bytes"] == 2 * values + cross
