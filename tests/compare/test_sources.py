"""Comparisons whose rows start from runs of another comparison, or from new weights."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from compare.conftest import Results, failures, run_comparison
from synthesizer_lab.compare.rows import parse_rows
from synthesizer_lab.compare.tables import markdown_page
from synthesizer_lab.errors import UserError
from synthesizer_lab.tasks.span_corruption import SpanCorruption
from synthesizer_lab.tasks.summarization import Summarization
from synthesizer_lab.training.run_folder import RunFolder
from training.conftest import SMALL

TRAINING = ("batch_tokens=400", "warmup_steps=2", "eval_steps=2", "logging_steps=1")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    sentences = [f"the {number} of {number * number} is here" for number in range(30)]
    for split, lines in (("train", sentences), ("valid", sentences[:5]), ("test", sentences[5:12])):
        rows = [json.dumps({"article": line, "highlights": line[:9]}) for line in lines]
        (folder / f"{split}.jsonl").write_text("\n".join(rows * 3), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def pretrained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("pretrained") / "out"
    options = {"overrides": [*TRAINING, *SMALL[:5]], "training": {"max_steps": 2}, "generation": {}}
    run_comparison(data, output, "vanilla,vanilla-control,random", task=SpanCorruption(sentinels=10), **options)
    return output


Finetune = Callable[..., Results]


@pytest.fixture
def finetune(data: Path, tmp_path: Path) -> Finetune:
    def run(rows: str, source: str | None) -> Results:
        shared = {"overrides": TRAINING, "training": {"max_steps": 2}, "source": source}
        generation = {"num_beams": 1, "max_new_tokens": 4}
        return run_comparison(data, tmp_path / "out", rows, task=Summarization(), generation=generation, **shared)[0]

    return run


def test_rows_from_runs_and_from_new_weights_are_one_table(
    finetune: Finetune, pretrained: Path, tmp_path: Path
) -> None:
    rows = "vanilla,vanilla@from=none,vanilla-control,random@learning_rate=1e-9"
    where = f"{pretrained}/{{synthesizer}}/seed-{{seed}}"
    results = finetune(rows, where)
    assert failures(results) == []
    assert f"Trained from the weights of {where}; rows with @from=none from new weights." in markdown_page(results)
    before = json.loads((pretrained / "results.json").read_text(encoding="utf-8"))
    assert results["tokenizer"] == before["tokenizer"]
    # Sizes are those of the runs; of a control row the one that was chosen there.
    sizes = {row["row"]: (row["parameters"], row["d_ff"]) for row in before["rows"]}
    sources = ("vanilla", "vanilla", "vanilla-control", "random")
    assert [(row["parameters"], row["d_ff"]) for row in results["rows"]] == [sizes[name] for name in sources]
    folders = [tmp_path / "out" / row.folder / "seed-0" for row in parse_rows([rows])]
    starts = [RunFolder(path).read_info()["from"] for path in folders]
    assert [start["scratch"] for start in starts] == [False, True, False, False]
    assert [Path(start["path"]).parent.name for start in starts] == [*sources]
    old, new = (
        next(value for name, value in load_file(path / "model.safetensors").items() if "embed_tokens" in name)
        for path in (pretrained / "random/seed-0", folders[3])
    )
    assert (old - new).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("rows", "where", "message"),
    [
        ("dense", "{synthesizer}/seed-0", "dense/seed-0"),
        ("random", "vanilla/seed-{seed}", "'vanilla'.*'random'"),
        ("random@num_heads=1", "{synthesizer}/seed-0", r"got (num_heads|d_kv)="),
        ("vanilla@from=none", None, "'vanilla@from=none' without --from"),
    ],
)
def test_runs_that_are_not_there_are_refused(
    finetune: Finetune, pretrained: Path, tmp_path: Path, rows: str, where: str | None, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        finetune(rows, where and f"{pretrained}/{where}")
    assert not (tmp_path / "out").exists()
