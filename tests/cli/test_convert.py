"""synthesizer convert."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from cli.conftest import LANGUAGES, SETS, Call, check_error, corpus, snapshot, succeed, train_run
from conversion.conftest import make_source
from synthesizer_lab.tasks.translation import Translation
from synthesizer_lab.training.run_folder import PretrainedRun

__all__ = ["corpus"]


@pytest.fixture(scope="module")
def vanilla(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with vanilla, for tests that only read it."""
    return train_run("translation", corpus, tmp_path_factory.mktemp("vanilla") / "run", "--synthesizer", "vanilla")


def test_heads_of_a_run(call: Call, vanilla: Path, corpus: Path, tmp_path: Path) -> None:
    """Half of the heads become random; the result is a run for other commands, and a model for the Auto classes."""
    before, output = snapshot(vanilla), tmp_path / "new/run"
    (output / ".partial-abcdefgh").mkdir(parents=True)
    (output / ".partial-abcdefgh/.lock").touch()
    command = ("convert", vanilla, "--synthesizer", "random", "--calibrate", corpus, "--output", output)
    options = ("--budget", "0.5", "--distill-steps", 3, "--examples", 30, "--threads", 1, "--max-length", 28)
    out, _ = succeed(call(*command, *options))
    assert all(text in out for text in ("heads replaced", "loss on held-out text"))
    report = json.loads((output / "report.json").read_text())
    assert set(report["loss"]) == {"before", "calibrated", "distilled"}
    heads = report["heads"]
    assert report["replaced_heads"] == sum(head["replaced"] for head in heads) == len(heads) // 2
    assert report["after"]["cache_bytes"] <= report["before"]["cache_bytes"]
    assert not [*output.glob(".partial-*")]
    # `compare --from` takes only runs that are finished.
    assert PretrainedRun.open(output, Translation).finished
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(output), AutoTokenizer.from_pretrained(output)
    assert model.config.synthesizer == report["synthesizer"]
    assert "random" in str(model.config.synthesizer)
    # All of them: a run may be of a class with fields that its own settings do not have.
    settings = yaml.safe_load((output / "run.yaml").read_text())["settings"]["model"]
    assert settings["position_embedding_type"] == "sinusoidal"
    assert all(getattr(model.config, name) == value for name, value in settings.items())
    assert tokenizer.model_max_length == model.config.max_position_embeddings == 28
    assert tokenizer("one").input_ids == AutoTokenizer.from_pretrained(vanilla)("one").input_ids
    assert call("generate", output, "one plus two")[0] == 0
    # With its maximum length.
    more = ("--from", output, "--output", tmp_path / "more", "--steps", 1, "--on-long", "drop", *SETS[:2])
    assert "not trained" not in succeed(call("train", "translation", "--data", corpus, *LANGUAGES, *more))[1]
    content = snapshot(output)
    # There is nothing to continue.
    check_error(call("train", "translation", "--output", output, "--resume"), "--from")
    check_error(call(*command), output, "--output")
    assert snapshot(output) == content
    assert snapshot(vanilla) == before


def test_a_saved_model_and_a_file_of_lines(call: Call, vanilla: Path, corpus: Path, tmp_path: Path) -> None:
    saved, output, mixed = tmp_path / "saved", tmp_path / "new", tmp_path / "mixed"
    shutil.copytree(vanilla, saved)
    # Without a text, and from a run that is not finished.
    (saved / "metrics.json").unlink()
    out, err = succeed(call("convert", saved, "--synthesizer", "random+vanilla", "--output", mixed))
    assert "generation of" in out
    assert "not trained to its end" in err
    assert not PretrainedRun.open(mixed, Translation).finished
    (saved / "run.yaml").unlink()
    lines = ("--calibrate", corpus / "train.en", "--examples", 6)
    _, err = succeed(call("convert", saved, "--synthesizer", "dense", *lines, "--max-length", 30, "--output", output))
    assert json.loads((output / "report.json").read_text())["synthesizer"] == "dense"
    assert not (output / "run.yaml").exists()
    assert AutoModelForSeq2SeqLM.from_pretrained(output).config.max_position_embeddings == 30


def test_errors(call: Call, vanilla: Path, corpus: Path, tmp_path: Path) -> None:
    text, output = ("--calibrate", corpus), tmp_path / "new"
    for options, fact in (
        (("--synthesizer", "randum"), "randum"),
        (("--synthesizer", "random", "--budget", 0.5), "--calibrate"),
        (("--synthesizer", "random", *text, "--budget", 1.5), "1.5"),
        (("--synthesizer", "random", "--task", "translation", *LANGUAGES), "--data"),
        (("--synthesizer", "random", *LANGUAGES), "--task translation"),
        (("--synthesizer", "random", "--task", "translation", *LANGUAGES, "--data", corpus), "leave it out"),
        (("--synthesizer", "fixed_random", *text), "random, dense, factorized_random"),
        (("--synthesizer", "random", "--calibrate", tmp_path / "none"), "none"),
    ):
        check_error(call("convert", vanilla, "--output", output, *options), fact)
    check_error(call("convert", tmp_path / "none", "--synthesizer", "random", "--output", output), "none")
    assert not output.exists()


def test_a_marian_model_as_a_run(call: Call, vanilla: Path, corpus: Path, tmp_path: Path) -> None:
    """A model from elsewhere, with token ids of its own and rows without a token, is a run of a task."""
    model, output, tokenizer = tmp_path / "model", tmp_path / "run", AutoTokenizer.from_pretrained(vanilla)
    fields = {"max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1}
    fields |= {"encoder_layers": 1, "decoder_layers": 1}
    source = make_source("marian", vocab_size=len(tokenizer) + 4, **fields)
    source.save_pretrained(model)
    tokenizer.save_pretrained(model)
    task = ("--task", "translation", "--data", corpus, *LANGUAGES)
    assert call("convert", model, "--synthesizer", "vanilla", *task, "--output", output)[0] == 0
    inputs = tokenizer("one plus two", return_tensors="pt", return_token_type_ids=False)
    want = source.generate(**inputs, max_new_tokens=5, do_sample=False, num_beams=1)[0]
    _, out, _ = call("generate", output, "one plus two", "--num-beams", 1, "--max-new-tokens", 5)
    assert out.strip() == tokenizer.decode(want, skip_special_tokens=True).strip()
    more = ("--from", output, "--output", tmp_path / "more", "--steps", 1, "--on-long", "drop", *SETS[-2:])
    succeed(call("train", "translation", "--data", corpus, *LANGUAGES, *more))
    config = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "more").config
    assert config.decoder_start_token_id == source.config.decoder_start_token_id != config.bos_token_id
    other = ("convert", model, "--synthesizer", "random", "--output", tmp_path / "new", "--task")
    check_error(call(*other, "language-modeling", "--data", corpus), "SynthesizerForConditionalGeneration")


def test_tokenizers_that_are_missing(call: Call, corpus: Path, tmp_path: Path) -> None:
    """Only text needs one."""
    model, command = tmp_path / "model", ("convert", tmp_path / "model", "--synthesizer", "random", "--output")
    make_source("bert").save_pretrained(model)
    check_error(call(*command, tmp_path / "new", "--calibrate", corpus / "train.en"), "tokenizer")
    assert "no tokenizer" in succeed(call(*command, tmp_path / "new"))[1]
    assert not [*(tmp_path / "new").glob("token*")]
