"""Runs that start from other runs: what is taken over, that they can be resumed, what is refused."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from synthetic_attention.inspect.inspection import inspect_run
from synthetic_attention.tasks import UserError, get_task
from synthetic_attention.tasks.classification import Classification
from synthetic_attention.tasks.span_corruption import SpanCorruption
from synthetic_attention.tasks.summarization import Summarization
from synthetic_attention.tasks.translation import Translation
from synthetic_attention.training.dry_run import dry_run
from synthetic_attention.training.evaluation import evaluate_run
from synthetic_attention.training.run_folder import RunFolder
from synthetic_attention.training.session import resume_run, start_run
from synthetic_attention.training.settings import Settings, build_config, read_settings
from synthetic_attention.training.source import Source
from training.conftest import SMALL
from training.counting import Counting
from training.runs import Kill, KilledError, assert_same_runs, die, silent, snapshot

MODEL = SMALL[:5]
TRAINING = ("batch_tokens=400", "warmup_steps=2", "eval_interval=2", "log_interval=1", "steps=4")
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
    task = get_task("span-corruption").from_options({"sentinels": 10})
    start_run(task=task, data=data, settings=settings, output=path, report=silent)
    return path


def _settings(source: Source, *overrides: str, synthesizer: str | None = None) -> Settings:
    return read_settings(
        synthesizer=synthesizer,
        preset="small",
        seed=2,
        overrides=[*TRAINING, *overrides],
        task=Summarization,
        start=source.settings,
    )


def _start(data: Path, source: Source, output: Path, *overrides: str, **options: Any) -> None:
    settings = _settings(source, *overrides)
    options = {"report": silent, **options}
    start_run(task=TASK, data=data, settings=settings, output=output, source=source, **options)


def test_model_and_tokenizer_are_those_of_the_run(data: Path, pretrained: Path, tmp_path: Path) -> None:
    source, output, lines = Source.open(pretrained, Summarization), tmp_path / "run", list[str]()
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
    assert new.convert_tokens_to_ids("<extra_id_9>") == len(new) - 10
    evaluate_run(output, report=silent)


@pytest.mark.parametrize("pair", [False, True])
def test_a_classifier_takes_the_encoder(data: Path, pretrained: Path, tmp_path: Path, pair: bool) -> None:
    options = {"text": "article", "label": "even", **({"text_pair": "highlights"} if pair else {})}
    for split in ("train", "valid"):
        lines = [json.loads(line) for line in (data / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]
        rows = [json.dumps({**line, "even": ["no", "yes"][number % 2]}) for number, line in enumerate(lines)]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(rows), encoding="utf-8")
    task, source, output = Classification(**options), Source.open(pretrained, Classification), tmp_path / "run"
    overrides = [*TRAINING, "learning_rate=1e-12"]
    settings = read_settings(
        synthesizer=None, preset="small", seed=2, overrides=overrides, task=Classification, start=source.settings
    )
    start_run(task=task, data=tmp_path, settings=settings, output=output, source=source, report=silent)
    before, after = (load_file(path / "model.safetensors") for path in (pretrained, output))
    encoder = {name for name in before if name.startswith("encoder.")}
    new = {"classifier.weight", "classifier.bias", *(["token_types.weight"] if pair else [])}
    assert after.keys() == encoder | new
    for name in encoder:
        torch.testing.assert_close(after[name], before[name], atol=1e-9, rtol=0.0)
    assert after["classifier.weight"].std() > 0.01
    if pair:
        assert after["token_types.weight"].abs().max() < 1e-9
    # The pieces are those of the run, between the tokens that a text of this task has.
    tokenizer = RunFolder(output).load_tokenizer()
    assert tokenizer.get_vocab() == source.tokenizer().get_vocab()
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("the")["input_ids"])
    assert (tokens[0], tokens[-1]) == ("<s>", "</s>")
    evaluate_run(output, split="valid", report=silent)
    with pytest.raises(UserError, match="can start from a SynthesizerForConditionalGeneration only"):
        Source.open(output, Summarization)


@pytest.mark.parametrize(
    ("columns", "classes", "news"),
    [
        ({}, ["no", "yes"], None),
        ({}, ["yes", "no"], "the head is new, for yes, no"),
        ({}, ["no", "yes", "maybe"], "the head is new, for no, yes, maybe"),
        ({"text_pair": "highlights"}, ["no", "yes"], "the types of tokens start at zero"),
        ({"text_pair": "highlights"}, None, "the head is new, for score; the types of tokens start at zero"),
    ],
)
def test_a_classifier_takes_a_classifier(
    tmp_path: Path, columns: dict[str, str], classes: list[str] | None, news: str | None
) -> None:
    """The head only where it says the same."""

    def write(labels: list[str]) -> None:
        for split, lines in (("train", SENTENCES), ("valid", SENTENCES[:5])):
            rows = [{"text": s, "highlights": s[:9], "label": labels[i % len(labels)]} for i, s in enumerate(lines)]
            (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")

    def train(task: Classification, name: str, **options: Any) -> dict[str, torch.Tensor]:
        start = source.settings if (source := options.get("source")) else None
        overrides = [*([] if start else MODEL), *TRAINING, "learning_rate=1e-12"]
        settings = read_settings(
            synthesizer=None if start else "random",
            preset="tiny",
            seed=2 if start else 1,
            overrides=overrides,
            task=Classification,
            start=start,
        )
        start_run(task=task, data=tmp_path, settings=settings, output=tmp_path / name, **{"report": silent, **options})
        evaluate_run(tmp_path / name, split="valid", report=silent)
        return load_file(tmp_path / name / "model.safetensors")

    write(["0", "1"])
    before = train(Classification(text="text", label="label", classes=["no", "yes"]), "first")
    write([str(index) for index in range(len(classes))] if classes else ["0.5", "2"])
    source, lines = Source.open(tmp_path / "first", Classification), list[str]()
    task = Classification(text="text", label="label", classes=classes, regression=classes is None, **columns)
    after = train(task, "second", source=source, report=lines.append)
    assert [line for line in lines if line.startswith(("the head", "the types"))] == ([news] if news else [])
    new = {name for name in after if name.startswith("token_types.")}
    assert after.keys() == before.keys() | new
    for name in before.keys() - {"classifier.weight", "classifier.bias"}:
        torch.testing.assert_close(after[name], before[name], atol=1e-9, rtol=0.0)
    head = after["classifier.weight"]
    kept = head.shape == before["classifier.weight"].shape and torch.allclose(head, before["classifier.weight"])
    assert kept == ("head" not in (news or ""))
    assert all(after[name].abs().max() < 1e-9 for name in new)


def test_new_weights_for_the_same_model(data: Path, pretrained: Path, tmp_path: Path) -> None:
    source = Source.open(pretrained, Summarization, scratch=True)
    _start(data, source, tmp_path / "run", "learning_rate=1e-12")
    before, after = (load_file(path / "model.safetensors") for path in (pretrained, tmp_path / "run"))
    assert before["encoder.embed_tokens.weight"].shape == after["encoder.embed_tokens.weight"].shape
    assert not torch.equal(before["encoder.embed_tokens.weight"], after["encoder.embed_tokens.weight"])
    assert RunFolder(tmp_path / "run").load_tokenizer().get_vocab() == source.tokenizer().get_vocab()


def test_resuming_needs_the_source_only_before_the_first_checkpoint(
    data: Path, pretrained: Path, tmp_path: Path
) -> None:
    shutil.copytree(pretrained, tmp_path / "source")
    source = Source.open(tmp_path / "source", Summarization)
    straight, late, early = (tmp_path / name for name in ("straight", "late", "early"))
    _start(data, source, straight)
    for output, step in ((late, 4), (early, 1)):
        with pytest.raises(KilledError):
            _start(data, source, output, watch=lambda *_, step=step: Kill(step, die))
    with pytest.raises(UserError, match="was started with"):
        resume_run(late, expected={"from": "/elsewhere"}, report=silent)
    resume_run(early, expected={"from": str(tmp_path / "source")}, report=silent)
    assert_same_runs(straight, early)
    shutil.rmtree(early)
    with pytest.raises(KilledError):
        _start(data, source, early, watch=lambda *_: Kill(1, die))
    shutil.rmtree(tmp_path / "source")
    resume_run(late, report=silent)
    assert_same_runs(straight, late)
    with pytest.raises(UserError, match=r"early has no checkpoint yet, and cannot start from where it did: .* no such"):
        resume_run(early, report=silent)
    shutil.copytree(straight, tmp_path / "source")
    with pytest.raises(UserError, match="its weights are not those that they were"):
        resume_run(early, report=silent)


def test_a_run_that_is_started_from_is_not_replaced(data: Path, pretrained: Path) -> None:
    before = snapshot(pretrained)
    with pytest.raises(UserError, match="the run to start from would be replaced"):
        _start(data, Source.open(pretrained, Summarization), pretrained, overwrite=True)
    assert snapshot(pretrained) == before


def test_dry_runs_start_from_runs_too(data: Path, pretrained: Path) -> None:
    source, lines = Source.open(pretrained, Summarization), list[str]()
    found = dry_run(TASK, data, _settings(source), source=source, report=lines.append)
    assert "weights and tokenizer" in lines[0]
    assert found["vocabulary"] == len(source.tokenizer())


@pytest.mark.parametrize(
    ("overrides", "synthesizer", "message"),
    [
        ((), "vanilla", r"got synthesizer vanilla, but the run to start from has 'random\+vanilla'"),
        (("d_model=32",), None, "got d_model=32, but the run to start from has 16; of its model only .*dropout_rate"),
        (("norm_type=rms_norm",), None, "got norm_type='rms_norm', but the run to start from has 'layer_norm'"),
        (("random.std=0.5",), None, r"got synthesizer_options=.* the run to start from has \{'random': \{'std': 0.1"),
        (("steps=0",), None, "got steps=0"),
    ],
)
def test_another_model_is_refused(
    pretrained: Path, overrides: tuple[str, ...], synthesizer: str | None, message: str
) -> None:
    source = Source.open(pretrained, Summarization)
    with pytest.raises(UserError, match=message):
        _settings(source, *overrides, synthesizer=synthesizer)
    # What is the same may be said.
    same = _settings(source, "d_model=16", "random.std=0.1", "label_smoothing=0.0", synthesizer="random+vanilla")
    assert same.model["label_smoothing"] == 0.0


@pytest.mark.parametrize("name", ["translation", "summarization", "dialogue", "glue", "superglue", "span-corruption"])
def test_every_task_of_such_a_model_starts_from_it(pretrained: Path, name: str) -> None:
    task = get_task(name)
    source = Source.open(pretrained, task)
    settings = read_settings(
        synthesizer=None, preset="t5-tiny", seed=0, overrides=TRAINING, task=task, start=source.settings
    )
    model = task.model_type()(build_config(settings, vocab_size=len(source.tokenizer())))
    options = {"source": "en", "target": "de"} if name == "translation" else {}
    assert source.fill(task.from_options(options), model, source.model()) is None
    for key, value in load_file(pretrained / "model.safetensors").items():
        assert torch.equal(model.state_dict()[key], value)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def _without_a_weight(path: Path) -> None:
    weights = load_file(path)
    del weights["decoder.final_norm.weight"]
    save_file(weights, path, metadata={"format": "pt"})


def _settings_gone(path: Path) -> None:
    path.write_text(path.read_text(encoding="utf-8").replace("synthesizer:", "synthesiser:"), encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("model.safetensors", Path.unlink, "no model there yet; train it further"),
        ("model.safetensors", _cut, "the run cannot be loaded"),
        ("model.safetensors", _without_a_weight, "missing keys: decoder.final_norm.weight"),
        ("tokenizer.json", _cut, "the run cannot be loaded"),
        ("config.json", _cut, "the run cannot be loaded"),
        ("run.yaml", Path.unlink, "no run"),
        ("run.yaml", _settings_gone, "no valid settings.synthesizer"),
    ],
)
def test_damaged_runs_are_one_line(
    data: Path, pretrained: Path, tmp_path: Path, name: str, damage: Callable[[Path], object], message: str
) -> None:
    shutil.copytree(pretrained, tmp_path / "source")
    damage(tmp_path / "source" / name)
    with pytest.raises(UserError, match=message):
        _start(data, Source.open(tmp_path / "source", Summarization), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_runs_that_do_not_fit_are_refused(
    data: Path, pretrained: Path, corpus: Path, small: Callable[..., Settings], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"none: no such folder; expected a folder made by `synthesizer train`"):
        Source.open(tmp_path / "none", Summarization)
    with pytest.raises(UserError, match="a run of task span-corruption, whose model is a SynthesizerForConditional"):
        Source.open(pretrained, Counting)
    # A tokenizer without sentinels cannot name spans.
    start_run(task=Translation("en", "de"), data=corpus, settings=small(), output=tmp_path / "mt", report=silent)
    source = Source.open(tmp_path / "mt", SpanCorruption)
    with pytest.raises(UserError, match="the tokenizer has no <extra_id_0>"):
        start_run(
            task=SpanCorruption(sentinels=10),
            data=data,
            settings=small("long_sentences=drop", start=source.settings, synthesizer=None),
            output=tmp_path / "run",
            source=source,
            report=silent,
        )
    assert not (tmp_path / "run").exists()


def test_before_training_is_the_run_that_it_started_from(data: Path, tmp_path: Path, pretrained: Path) -> None:
    source = Source.open(Path(shutil.copytree(pretrained, tmp_path / "source")), Summarization)
    run = tmp_path / "run"
    # The seed of the source, which gives what that one started from.
    settings = replace(_settings(source), seed=1)
    start_run(task=TASK, data=data, settings=settings, output=run, source=source, report=silent)

    def inspect(name: str) -> tuple[str, dict[str, Any]]:
        page = inspect_run(run, count=1, sample=1, output=tmp_path / name, report=lines.append)
        return page.read_text(encoding="utf-8"), json.loads((page.parent / "inspect.json").read_text(encoding="utf-8"))

    lines: list[str] = []
    text, numbers = inspect("one")
    assert f"R before training is that of {source.run.path}" in text
    table = load_file(source.run.path / "model.safetensors")["encoder.layers.0.self_attention.function.parts.0.table"]
    head = numbers["random"]["layers"][0]["heads"][0]
    size = numbers["random"]["layers"][0]["positions"]
    assert head["before"]["std"] == pytest.approx(table[0, :size, :size].numpy().std(), rel=1e-6)
    assert "histogram_before" in numbers["attention"][0]
    shutil.rmtree(source.run.path)
    text, numbers = inspect("two")
    assert "R before training is not shown" in text
    assert lines[-1].startswith("before training is not shown: ")
    assert "before" not in numbers["random"]["layers"][0]["heads"][0]
    assert "histogram_before" not in numbers["attention"][0]
