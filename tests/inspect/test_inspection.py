"""inspect_run: pictures, page and numbers of a run."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from matplotlib.figure import Figure
from safetensors.torch import load_file

from synthetic_attention import SynthesizerConfig, SynthesizerForCausalLM
from synthetic_attention.data.tokenizer import train_tokenizer
from synthetic_attention.inspect import attention_maps, findings
from synthetic_attention.inspect.attention_maps import choose_examples, example_inputs, map_attention, text_inputs
from synthetic_attention.inspect.inspection import inspect_run
from synthetic_attention.tasks import UserError
from synthetic_attention.tasks.translation import Translation
from synthetic_attention.training.session import start_run
from synthetic_attention.training.settings import read_settings
from training.conftest import SMALL
from training.counting import Counting, known
from training.runs import silent

Drawn = dict[str, Figure]


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("inspected") / "run"
    options = {"preset": "tiny", "seed": 3, "overrides": [*SMALL, "steps=30", "eval_interval=30", "learning_rate=0.01"]}
    settings = read_settings(synthesizer="{encoder: random+vanilla, decoder: fixed_random}", **options)
    start_run(task=Translation("en", "de"), data=corpus, settings=settings, output=output, report=silent)
    return output


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    """Figures by the names of their files, which stay empty: drawing takes most of the time."""
    figures: Drawn = {}

    def keep(figure: Figure, path: Path) -> None:
        figures[path.name] = figure
        path.touch()

    monkeypatch.setattr(findings, "save", keep)
    return figures


def _numbers(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "inspect.json").read_text(encoding="utf-8"))


def test_examples_of_the_data_are_looked_at(run: Path, tmp_path: Path, drawn: Drawn) -> None:
    page = inspect_run(run, count=1, sample=4, output=tmp_path / "out", report=silent)
    assert page == tmp_path / "out" / "index.html"
    stacks = ("encoder", "decoder", "cross")
    expected = {f"text1-{stack}-{part}.png" for stack in stacks for part in ("all", "layer1")}
    expected |= {"weights.png", "gates.png", "R-encoder-layer1-random.png", "R-decoder-layer1-fixed-random.png"}
    assert drawn.keys() == expected
    assert {path.name for path in page.parent.iterdir()} == {*expected, "index.html", "inspect.json"}
    text = page.read_text(encoding="utf-8")
    assert all(f'src="{name}"' in text for name in expected)
    numbers = _numbers(page.parent)
    assert (numbers["examples"], numbers["sample"]) == (4, "valid data")
    assert [(entry["stack"], entry["synthesizer"]) for entry in numbers["attention"]] == [
        ("encoder", "random+vanilla"),
        ("decoder", "fixed_random"),
        ("cross", "vanilla"),
    ]
    assert all(len(entry["heads"]) == 2 for entry in numbers["attention"])
    for entry in numbers["attention"]:
        assert sum(entry["histogram_before"]) == sum(entry["histogram"])
        assert (entry["histogram_before"] == entry["histogram"]) == (entry["synthesizer"] == "fixed_random")
    assert "The line is the same sample before training" in text
    ((gate,),) = [numbers["gates"]]
    assert np.allclose(np.sum(list(gate["alpha"].values()), axis=0), 1)


def test_r_before_training_is_that_of_the_seed(run: Path, tmp_path: Path, drawn: Drawn) -> None:
    inspect_run(run, ["one plus two"], sample=4, output=tmp_path / "out", report=silent)
    numbers = _numbers(tmp_path / "out")["random"]
    assert numbers["initial"]["certain"]
    assert 0.5 < numbers["initial"]["unchanged"] < 1
    random, fixed = numbers["layers"]
    assert (random["stack"], random["function"], fixed["function"]) == ("encoder", "random", "fixed_random")
    for head in fixed["heads"]:
        assert head["before"] == head["after"]
    for head in random["heads"]:
        assert head["before"]["std"] == pytest.approx(0.003, rel=0.3)
        assert head["after"]["std"] > head["before"]["std"]
        # Before training attention is uniform.
        assert head["before"]["band_mass"] == pytest.approx(random["uniform_band_mass"], rel=0.02)
    assert "before training" in drawn["R-encoder-layer1-random.png"].axes[0].get_title()


def test_relative_biases(corpus: Path, tmp_path: Path, drawn: Drawn) -> None:
    overrides = [*SMALL, "steps=30", "eval_interval=30", "relative_attention_max_distance=20"]
    settings = read_settings(synthesizer="vanilla", preset="t5-tiny", seed=3, overrides=overrides)
    start_run(task=Translation("en", "de"), data=corpus, settings=settings, output=tmp_path / "run", report=silent)
    inspect_run(tmp_path / "run", count=1, sample=2, report=silent)
    assert "biases.png" in drawn
    encoder, decoder = _numbers(tmp_path / "run" / "inspect")["relative_biases"]
    assert (encoder["distances"], decoder["distances"]) == ([*range(-20, 21)], [*range(-20, 1)])
    weights = load_file(tmp_path / "run" / "model.safetensors")
    for entry, zero in ((encoder, 20), (decoder, 20)):
        biases, start = np.array(entry["after"]), np.array(entry["before"])
        weight = weights[f"{entry['stack']}.relative_bias.weight"]
        # The first bucket is the distance 0, the second of a causal stack, and of the first half else, the key before.
        assert np.allclose(biases[:, zero], weight[0])
        assert np.allclose(biases[:, zero - 1], weight[1])
        assert biases.shape == start.shape
        assert 0 < np.abs(biases - start).max() < 1


def test_another_start_is_not_shown_as_this_ones(run: Path, tmp_path: Path, drawn: Drawn) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    info = yaml.safe_load((copy / "run.yaml").read_text(encoding="utf-8"))
    info["settings"]["seed"] = 4
    (copy / "run.yaml").write_text(yaml.safe_dump(info), encoding="utf-8")
    page = inspect_run(copy, ["one"], sample=2, report=silent)
    assert page == copy / "inspect" / "index.html"
    text = page.read_text(encoding="utf-8")
    assert "R before training is not shown" in text
    assert "Before training is not shown" in text
    assert all("histogram_before" not in entry for entry in _numbers(copy / "inspect")["attention"])
    numbers = _numbers(copy / "inspect")["random"]
    assert not numbers["initial"]["certain"]
    assert all("before" not in head for layer in numbers["layers"] for head in layer["heads"])
    titles = "".join(axes.get_title() for axes in drawn["R-encoder-layer1-random.png"].axes)
    assert "after training" in titles
    assert "before" not in titles


def test_given_texts_need_no_data_and_replace_earlier_results(run: Path, tmp_path: Path, drawn: Drawn) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    info = yaml.safe_load((copy / "run.yaml").read_text(encoding="utf-8"))
    info["data"] = str(tmp_path / "gone")
    (copy / "run.yaml").write_text(yaml.safe_dump(info), encoding="utf-8")
    with pytest.raises(UserError, match="gone: the data of the run is not there any more; pass --data"):
        inspect_run(copy, report=silent)
    assert not (copy / "inspect").exists()
    lines: list[str] = []
    inspect_run(copy, ["one", "two <b>"], report=lines.append)
    assert "gone: the data of the run is not there any more; the numbers are of the texts alone" in lines[0]
    assert _numbers(copy / "inspect")["sample"] == "the texts"
    assert "two &lt;b&gt; →" in (copy / "inspect" / "index.html").read_text(encoding="utf-8")
    (copy / "inspect" / "notes.txt").write_text("mine", encoding="utf-8")
    drawn.clear()
    inspect_run(copy, ["three"], report=silent)
    names = {path.name for path in (copy / "inspect").iterdir()}
    assert names == {*drawn, "index.html", "inspect.json", "notes.txt"}
    assert not list(copy.glob(".partial*"))


def test_data_on_the_hub_is_not_taken_for_a_path(
    run: Path, corpus: Path, tmp_path: Path, drawn: Drawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    info = yaml.safe_load((copy / "run.yaml").read_text(encoding="utf-8"))
    info["data"] = "hub:owner/name"
    (copy / "run.yaml").write_text(yaml.safe_dump(info), encoding="utf-8")
    asked, read = list[Path](), Translation.read

    def fetch(self: Translation, data: Path, split: str) -> Any:
        asked.append(data)
        return read(self, corpus, split)

    monkeypatch.setattr(Translation, "read", fetch)
    inspect_run(copy, ["one"], sample=2, report=silent)
    assert asked == [Path("hub:owner/name")]
    assert _numbers(copy / "inspect")["sample"] == "valid data"


def test_axes_have_the_tokens(run: Path, tmp_path: Path, drawn: Drawn, monkeypatch: pytest.MonkeyPatch) -> None:
    # So short an output that each token has its label.
    monkeypatch.setattr(attention_maps, "output_limit", lambda *_: 8)
    inspect_run(run, ["one $5"], output=tmp_path / "out", sample=1, report=silent)

    def labels(name: str, axis: str) -> str:
        ticks = getattr(drawn[name].axes[0], f"get_{axis}ticklabels")()
        return "".join(tick.get_text() for tick in ticks)

    assert labels("text1-encoder-layer1.png", "x") == "one␣$5</s>"
    assert labels("text1-encoder-layer1.png", "y") == "one␣$5</s>"
    assert labels("text1-cross-layer1.png", "x") == "one␣$5</s>"
    # The decoder reads from the start token on, and writes what comes one later.
    read, written = (labels(f"text1-{name}-layer1.png", "y") for name in ("decoder", "cross"))
    assert read.startswith("<s>")
    assert read.removeprefix("<s>") == written[: len(read) - 3]


def test_what_cannot_be_looked_at_is_refused(run: Path, corpus: Path, tmp_path: Path) -> None:
    before = sorted(run.rglob("*"))
    for texts, message in ((["one", " "], r"got a blank text \(2 of 2\)"), (["one " * 99], "the longest has")):
        with pytest.raises(UserError, match=message):
            inspect_run(run, texts, report=silent)
    with pytest.raises(UserError, match="splits there are: test, test_templates, train, valid"):
        inspect_run(run, split="tset", report=silent)
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match="exists and is not a folder; choose another --output"):
        inspect_run(run, output=tmp_path / "file", report=silent)
    with pytest.raises(UserError, match="has files that `synthesizer inspect` did not write"):
        inspect_run(run, output=tmp_path, report=silent)
    (tmp_path / "inspect.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match=r"inspect\.json cannot be loaded: KeyError 'files'"):
        inspect_run(run, output=tmp_path, report=silent)
    with pytest.raises(UserError, match="expected a folder made by `synthesizer train`"):
        inspect_run(corpus, report=silent)
    assert sorted(run.rglob("*")) == before


def test_a_causal_model_is_looked_at_too(corpus: Path, tmp_path: Path, drawn: Drawn) -> None:
    with known():
        settings = read_settings(synthesizer="random", preset="tiny", seed=3, overrides=[*SMALL, "steps=2"])
        start_run(task=Counting(), data=corpus / "train.en", settings=settings, output=tmp_path / "run", report=silent)
        inspect_run(tmp_path / "run", count=1, sample=3, report=silent)
        inspect_run(tmp_path / "run", ["one plus two"], sample=3, output=tmp_path / "out", report=silent)
    names = {"text1-decoder-all.png", "text1-decoder-layer1.png", "weights.png", "R-decoder-layer1-random.png"}
    assert drawn.keys() == names
    axes = drawn["text1-decoder-layer1.png"].axes[0]
    assert "".join(tick.get_text() for tick in axes.get_xticklabels()) == "<s>one␣plus␣two</s>"
    assert axes.images[0].get_array().mask[0, 1]
    assert [entry["stack"] for entry in _numbers(tmp_path / "out")["attention"]] == ["decoder"]


class _Packed(Counting):
    """Two lines in a row, neither of which sees the other."""

    def collate(self, examples: Any, pad_token_id: int) -> dict[str, torch.Tensor]:
        row = torch.tensor([[1, 5, 6, 1, 7, 0]])
        return {"input_ids": row, "segment_ids": torch.tensor([[4, 4, 4, 2, 2, 0]])}


def test_packed_sentences_are_looked_at_one_by_one() -> None:
    config = SynthesizerConfig(vocab_size=300, d_model=8, num_heads=2, d_ff=8, num_layers=1, synthesizer="dense")
    model = SynthesizerForCausalLM(config).eval()
    inputs = example_inputs(_Packed(), model, [None], 0)  # type: ignore[arg-type]
    assert [one["input_ids"].tolist() for one in inputs] == [[[1, 5, 6]], [[1, 7]]]
    tokenizer = train_tokenizer(["a b"], 300, 8)
    _, maps = map_attention(model, tokenizer, inputs[1])
    assert maps["decoder"][0].weights.shape == (2, 2, 2)
    assert text_inputs(model, tokenizer, ["a"])[0]["input_ids"][0, 0] == config.bos_token_id


class _Lengths:
    def lengths(self) -> np.ndarray:
        return np.array([[3, 90], [16, 14], [4, 4], [15, 18], [16, 17]])


def test_examples_of_a_readable_length_are_chosen() -> None:
    assert choose_examples(_Lengths(), 2) == [1, 4]  # type: ignore[arg-type]
    assert choose_examples(_Lengths(), 9) == [0, 1, 2, 3, 4]  # type: ignore[arg-type]


def test_a_model_that_writes_nothing_has_no_numbers_of_its_output(run: Path, tmp_path: Path, drawn: Drawn) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    # The end is written at once: the decoder reads one token, and that row sees one key only.
    path = copy / "generation_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, "forced_eos_token_id": 2, "suppress_tokens": [*range(2), *range(3, 300)]}))
    info = yaml.safe_load((copy / "run.yaml").read_text(encoding="utf-8"))
    info["data"] = str(tmp_path / "gone")
    (copy / "run.yaml").write_text(yaml.safe_dump(info), encoding="utf-8")
    inspect_run(copy, ["one"], report=silent)
    encoder, decoder, cross = _numbers(copy / "inspect")["attention"]
    assert len(encoder["heads"]) == len(cross["heads"]) == 2
    assert decoder["heads"] == []
    assert sum(decoder["histogram"]) == 0
