"""synthesizer convert."""

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from cli.conftest import LANGUAGES, SETS, Call, check_error, corpus, snapshot
from conversion.conftest import make_source
from synthetic_attention.conversion.synthesize import stacks_of

__all__ = ["corpus"]


@pytest.fixture(scope="module")
def vanilla(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with vanilla, for tests that only read it."""
    from synthetic_attention.cli import main

    run = tmp_path_factory.mktemp("vanilla") / "run"
    command = ["train", "translation", "--data", corpus, *LANGUAGES, "--output", run, "--steps", 2, *SETS]
    with pytest.raises(SystemExit) as exit_:
        main([str(argument) for argument in [*command, "--synthesizer", "vanilla"]])
    assert exit_.value.code == 0
    return run


def test_heads_of_a_run(call: Call, vanilla: Path, corpus: Path, tmp_path: Path) -> None:
    """Half of the heads become random; the result is a run for other commands, and a model for the Auto classes."""
    before, output = snapshot(vanilla), tmp_path / "new/run"
    command = ("convert", vanilla, "--synthesizer", "random", "--calibrate", corpus, "--output", output)
    options = ("--budget", "0.5", "--distill-steps", 3, "--examples", 30, "--threads", 1, "--max-length", 28)
    code, out, err = call(*command, *options)
    assert code == 0, err
    assert "loss on the text" in out
    report = json.loads((output / "report.json").read_text())
    assert set(report["loss"]) == {"before", "calibrated", "distilled"}
    heads = report["heads"]
    assert report["replaced_heads"] == sum(head["replaced"] for head in heads) == len(heads) // 2
    assert all(0 <= head["error"]["random"] < 10 and head["explained_by_dense"] <= 1 for head in heads)
    assert all(abs(head["loss_increase"]) < 1 for head in heads)
    assert report["after"]["cache_bytes"] <= report["before"]["cache_bytes"]
    assert (output / "heads.png").stat().st_size > 10_000
    assert [path.name for path in output.parent.iterdir()] == ["run"]
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(output), AutoTokenizer.from_pretrained(output)
    names = [block.self_attn.synthesizer for stack in stacks_of(model) for block in stack.layers]
    assert sum("random" in name for name in names) > 0
    assert model.config.synthesizer == report["synthesizer"]
    assert tokenizer("one").input_ids == AutoTokenizer.from_pretrained(vanilla)("one").input_ids
    assert call("generate", output, "one plus two")[0] == 0
    # With its maximum length.
    more = ("--from", output, "--output", tmp_path / "more", "--steps", 1, "--on-long", "drop", *SETS[:2])
    code, _, err = call("train", "translation", "--data", corpus, *LANGUAGES, *more)
    assert code == 0, err
    content = snapshot(output)
    check_error(call(*command), output, "--output")
    assert snapshot(output) == content
    assert snapshot(vanilla) == before


def test_a_saved_model_and_a_file_of_lines(call: Call, vanilla: Path, corpus: Path, tmp_path: Path) -> None:
    saved, output = tmp_path / "saved", tmp_path / "new"
    shutil.copytree(vanilla, saved)
    (saved / "run.yaml").unlink()
    lines = ("--calibrate", corpus / "train.en", "--examples", 6)
    code, _, err = call("convert", saved, "--synthesizer", "dense", *lines, "--max-length", 30, "--output", output)
    assert code == 0, err
    report = json.loads((output / "report.json").read_text())
    assert report["synthesizer"] == "dense"
    assert not (output / "run.yaml").exists()
    assert AutoModelForSeq2SeqLM.from_pretrained(output).config.max_position_embeddings == 30
    # Without a text, and as it was.
    code, out, err = call("convert", saved, "--synthesizer", "random+vanilla", "--output", tmp_path / "mixed")
    assert code == 0, err
    assert "generation of" in out
    assert not (tmp_path / "mixed/heads.png").exists()


def test_errors(call: Call, vanilla: Path, corpus: Path, tmp_path: Path) -> None:
    text, output = ("--calibrate", corpus), tmp_path / "new"
    for options, fact in (
        (("--synthesizer", "randum"), "randum"),
        (("--synthesizer", "random", "--budget", 0.5), "--calibrate"),
        (("--synthesizer", "random", "--distill-steps", 5), "--calibrate"),
        (("--synthesizer", "random", *text, "--budget", 0.5, "--max-loss-increase", 1), "one of them"),
        (("--synthesizer", "random", *text, "--budget", 1.5), "1.5"),
        (("--synthesizer", "random", *text, "--budget", 0.01, "--examples", 3), "0.01"),
        (("--synthesizer", "random+vanilla", *text), "factorized_random"),
        (("--synthesizer", "random", "--set", "steps=3"), "steps"),
        (("--synthesizer", "[random, 3]"), "random"),
        (("--synthesizer", "random", *text, "--distill-steps", 1, "--learning-rate", -1), "-1"),
        (("--synthesizer", "random", "--calibrate", tmp_path / "none"), "none"),
    ):
        check_error(call("convert", vanilla, "--output", output, *options), fact)
    check_error(call("convert", tmp_path / "none", "--synthesizer", "random", "--output", output), "none")
    assert not output.exists()
    # Before anything is computed.
    check_error(
        call("convert", tmp_path / "none", "--synthesizer", "random", "--output", corpus / "train.en/new"), "new"
    )


@pytest.mark.parametrize("name", ["bert-model", "t5-model", "gpt2", "bart"])
def test_other_models(call: Call, vanilla: Path, corpus: Path, tmp_path: Path, name: str) -> None:
    """Models without a head have no loss to calibrate with; others generate, whatever their own settings are."""
    model, lines = tmp_path / "model", ("--calibrate", corpus / "train.en")
    source = make_source(name, vocab_size=2000)
    if source.can_generate():
        source.generation_config.update(use_cache=False, num_beams=2, num_return_sequences=2)
    source.save_pretrained(model)
    AutoTokenizer.from_pretrained(vanilla).save_pretrained(model)
    command = ("convert", model, "--synthesizer", "random", "--max-length", 6, "--threads", 1, "--examples", 9)
    code, out, err = call(*command, "--output", tmp_path / "new")
    assert code == 0, err
    assert ("generation of" if source.can_generate() else "forward of") in out
    if source.can_generate():
        assert call(*command, *lines, "--output", tmp_path / "calibrated")[0] == 0
    else:
        check_error(call(*command, *lines, "--output", tmp_path / "calibrated"), "head")
