"""Runs that start from other runs: what is taken over, that they can be resumed, what is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from synthesizer_lab.tasks import UserError, make_task
from synthesizer_lab.tasks.base import load_pretrained
from synthesizer_lab.tasks.classification import Classification
from synthesizer_lab.tasks.language_modeling import LanguageModeling
from synthesizer_lab.tasks.summarization import Summarization
from synthesizer_lab.training.evaluation import evaluate_run
from synthesizer_lab.training.run import resume_run
from synthesizer_lab.training.run_folder import PretrainedRun, RunFolder
from synthesizer_lab.training.settings import Settings, read_settings
from synthetic_attention import SynthesizerConfig, SynthesizerForSequenceClassification
from training.conftest import SMALL
from training.runs import Kill, KilledError, assert_same_runs, die, silent, snapshot, start

MODEL = SMALL[:5]
TRAINING = ("batch_tokens=400", "warmup_steps=2", "eval_steps=2", "logging_steps=1", "max_steps=4")
SENTENCES = [f"the {number} of {number * number} is here" for number in range(30)]
TASK = Summarization()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for split, lines in (("train", SENTENCES), ("valid", SENTENCES[:5]), ("test", SENTENCES[5:9])):
        (folder / f"{split}.txt").write_text("\n".join(lines * 3), encoding="utf-8")
        rows = [json.dumps({"article": line, "highlights": line[:9]}) for line in lines]
        (folder / f"{split}.jsonl").write_text("\n".join(rows), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def pretrained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "pretrained"
    overrides = [*MODEL, *TRAINING, "random.std=0.1", "dropout_rate=0.1"]
    settings = read_settings(synthesizer="random+vanilla", preset="tiny", seed=1, overrides=overrides)
    start(data, path, settings, task=make_task("span-corruption", {"sentinels": 10}))
    return path


def _settings(source: PretrainedRun, *overrides: str, synthesizer: str | None = None) -> Settings:
    overrides = (*TRAINING, *overrides)
    return read_settings(synthesizer=synthesizer, preset="small", seed=2, overrides=overrides, start=source.settings)


def _start(data: Path, source: PretrainedRun, output: Path, *overrides: str, **options: Any) -> None:
    start(data, output, _settings(source, *overrides), task=TASK, pretrained=source, **options)


def test_model_and_tokenizer_are_those_of_the_run(data: Path, pretrained: Path, tmp_path: Path) -> None:
    source, output, lines = PretrainedRun.open(pretrained, Summarization), tmp_path / "run", list[str]()
    settings = _settings(source, "dropout_rate=0.3")
    assert settings.synthesizer == "random+vanilla"
    assert settings.synthesizer_options == {"random": {"std": 0.1}}
    assert settings.model == {**source.settings.model, "dropout_rate": 0.3}
    # How to train is the preset's.
    assert (settings.preset, settings.training.learning_rate) == ("small", 2e-3)
    _start(data, source, output, "dropout_rate=0.3", "learning_rate=1e-12", report=lines.append)
    assert lines[0] == f"weights and tokenizer of {pretrained} (span-corruption)"
    info = RunFolder(output).read_info()
    assert info["from"] == source.record()
    assert info["from"]["path"] == str(pretrained)
    # At that rate no weight moves far from where it was.
    before, after = (load_file(path / "model.safetensors") for path in (pretrained, output))
    assert before.keys() == after.keys()
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, atol=1e-9, rtol=0.0)
    assert json.loads((output / "config.json").read_text(encoding="utf-8"))["dropout_rate"] == 0.3
    old, new = (RunFolder(path).load_tokenizer() for path in (pretrained, output))
    assert old.get_vocab() == new.get_vocab()
    evaluate_run(output, report=silent)


@pytest.mark.parametrize("pair", [False, True])
def test_a_classifier_takes_the_encoder(data: Path, pretrained: Path, tmp_path: Path, pair: bool) -> None:
    options = {"text": "article", "label": "even", **({"text_pair": "highlights"} if pair else {})}
    for split in ("train", "valid"):
        lines = [json.loads(line) for line in (data / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]
        rows = [json.dumps({**line, "even": ["no", "yes"][number % 2]}) for number, line in enumerate(lines)]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(rows), encoding="utf-8")
    task, source, output = Classification(**options), PretrainedRun.open(pretrained, Classification), tmp_path / "run"
    start(tmp_path, output, _settings(source, "learning_rate=1e-12"), task=task, pretrained=source)
    before, after = (load_file(path / "model.safetensors") for path in (pretrained, output))
    encoder = {name for name in before if name.startswith(("model.encoder.", "model.embed_tokens."))}
    new = {"classifier.weight", "classifier.bias", *(["model.token_types.weight"] if pair else [])}
    assert after.keys() == encoder | new
    for name in encoder:
        torch.testing.assert_close(after[name], before[name], atol=1e-9, rtol=0.0)
    assert after["classifier.weight"].std() > 0.01
    if pair:
        assert after["model.token_types.weight"].abs().max() < 1e-9
    # The pieces are those of the run, between the tokens that a text of this task has.
    tokenizer = RunFolder(output).load_tokenizer()
    assert tokenizer.get_vocab() == source.run.load_tokenizer().get_vocab()
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("the")["input_ids"])
    assert (tokens[0], tokens[-1]) == ("<s>", "</s>")
    evaluate_run(output, split="valid", report=silent)
    with pytest.raises(UserError, match="can only start from SynthesizerForConditionalGeneration"):
        PretrainedRun.open(output, Summarization)


@pytest.mark.parametrize(("labels", "news"), [(["no", "yes"], ""), (["yes", "no"], "the head is new, for yes, no")])
def test_a_classifier_takes_a_classifier(labels: list[str], news: str) -> None:
    """The head only if it has the same labels."""

    def make(names: list[str]) -> SynthesizerForSequenceClassification:
        sizes = {"vocab_size": 9, "d_model": 8, "num_heads": 2, "d_ff": 5, "num_layers": 1}
        return SynthesizerForSequenceClassification(SynthesizerConfig(**sizes, id2label=dict(enumerate(names))))

    old, new = make(["no", "yes"]), make(labels)
    assert (load_pretrained(new, old) or "") == news
    for name, value in old.state_dict().items():
        if name != "classifier.bias":
            assert torch.equal(new.state_dict()[name], value) == (name != "classifier.weight" or not news), name


def test_new_weights_for_the_same_model(data: Path, pretrained: Path, tmp_path: Path) -> None:
    source = PretrainedRun.open(pretrained, Summarization, scratch=True)
    _start(data, source, tmp_path / "run", "learning_rate=1e-12")
    paths = (pretrained, tmp_path / "run")
    before, after = (load_file(path / "model.safetensors")["model.embed_tokens.weight"] for path in paths)
    assert before.shape == after.shape
    assert not torch.equal(before, after)
    assert RunFolder(paths[1]).load_tokenizer().get_vocab() == source.run.load_tokenizer().get_vocab()


def test_resuming_needs_the_source_only_before_the_first_checkpoint(
    data: Path, pretrained: Path, tmp_path: Path
) -> None:
    shutil.copytree(pretrained, tmp_path / "source")
    source = PretrainedRun.open(tmp_path / "source", Summarization)
    straight, late, early = (tmp_path / name for name in ("straight", "late", "early"))
    _start(data, source, straight)
    for output, step in ((late, 4), (early, 1)):
        with pytest.raises(KilledError):
            _start(data, source, output, callbacks=[Kill(step, die)])
    with pytest.raises(UserError, match="was started with"):
        resume_run(late, expected={"from": "/elsewhere"}, report=silent)
    resume_run(early, expected={"from": str(tmp_path / "source")}, report=silent)
    assert_same_runs(straight, early)
    shutil.rmtree(early)
    with pytest.raises(KilledError):
        _start(data, source, early, callbacks=[Kill(1, die)])
    shutil.rmtree(tmp_path / "source")
    resume_run(late, report=silent)
    assert_same_runs(straight, late)
    with pytest.raises(UserError, match="source: no such folder"):
        resume_run(early, report=silent)
    shutil.copytree(straight, tmp_path / "source")
    with pytest.raises(UserError, match="its weights have changed"):
        resume_run(early, report=silent)


@pytest.mark.parametrize(
    ("overrides", "synthesizer", "message"),
    [
        ((), "vanilla", r"synthesizer='vanilla'.* 'random\+vanilla'"),
        (("d_model=32",), None, "d_model=32, .* 16; only .*dropout_rate.* can change"),
    ],
)
def test_another_model_is_refused(
    pretrained: Path, overrides: tuple[str, ...], synthesizer: str | None, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        _settings(PretrainedRun.open(pretrained, Summarization), *overrides, synthesizer=synthesizer)


def test_runs_that_do_not_fit_are_refused(data: Path, pretrained: Path) -> None:
    before = snapshot(pretrained)
    with pytest.raises(UserError, match="the run to start from would be replaced"):
        _start(data, PretrainedRun.open(pretrained, Summarization), pretrained, overwrite=True)
    assert snapshot(pretrained) == before
    with pytest.raises(UserError, match="a run of task span-corruption, whose model is a SynthesizerForConditional"):
        PretrainedRun.open(pretrained, LanguageModeling)
