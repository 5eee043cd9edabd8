"""Comparisons that start from the runs of another one, beside rows from new weights."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file

from synthetic_attention.compare.plan import Scoring, Shared
from synthetic_attention.compare.rows import Row, parse_rows
from synthetic_attention.compare.sources import find_sources
from synthetic_attention.compare.table import markdown_table
from synthetic_attention.compare.work import Ending, compare
from synthetic_attention.tasks import UserError
from synthetic_attention.tasks.base import Task
from synthetic_attention.tasks.span_corruption import SpanCorruption
from synthetic_attention.tasks.summarization import Summarization
from synthetic_attention.training.run_folder import RunFolder
from training.conftest import SMALL
from training.runs import silent, snapshot

TRAINING = ("batch_tokens=400", "warmup_steps=2", "eval_interval=2", "log_interval=1")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    sentences = [f"the {number} of {number * number} is here" for number in range(30)]
    for split, lines in (("train", sentences), ("valid", sentences[:5]), ("test", sentences[5:12])):
        rows = [json.dumps({"article": line, "highlights": line[:9]}) for line in lines]
        (folder / f"{split}.jsonl").write_text("\n".join(rows * 3), encoding="utf-8")
    return folder


def _compare(task: Task[Any, Any], data: Path, output: Path, rows: str, *overrides: str, **options: Any) -> Ending:
    shared = {
        "task": task,
        "data": data,
        "preset": "tiny",
        "overrides": [*TRAINING, *overrides],
        "steps": 2,
        "where": options.pop("where", None),
    }
    search = {"beams": 1, "max_tokens": 4} if isinstance(task, Summarization) else {}
    seeds = options.pop("seeds", (0,))
    return compare(
        shared=Shared(**shared),
        scoring=Scoring(search=search),
        rows=parse_rows([rows]),
        seeds=seeds,
        output=output,
        render=markdown_table,
        **{"report": silent, **options},
    )


@pytest.fixture(scope="module")
def pretrained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("pretrained") / "out"
    _compare(SpanCorruption(sentinels=10), data, output, "vanilla,vanilla-control,random", *SMALL[:5])
    return output


Finetune = Callable[..., Ending]


@pytest.fixture
def finetune(data: Path, pretrained: Path, tmp_path: Path) -> Finetune:
    def run(rows: str, where: str | None = str(pretrained), *overrides: str, **options: Any) -> Ending:
        return _compare(Summarization(), data, tmp_path / "out", rows, *overrides, where=where, **options)

    return run


def test_rows_from_runs_and_from_new_weights_are_one_table(
    finetune: Finetune, pretrained: Path, tmp_path: Path
) -> None:
    lines: list[str] = []
    rows = "vanilla,vanilla@from=none,vanilla-control,random@learning_rate=1e-9"
    ending = finetune(rows, report=lines.append)
    assert ending.failures == []
    results = ending.results
    assert results["from"] == str(pretrained)
    assert f"Trained from the weights of {pretrained}; rows with @from=none from new weights." in markdown_table(
        results
    )
    before = json.loads((pretrained / "results.json").read_text(encoding="utf-8"))
    assert results["tokenizer"] == before["tokenizer"]
    assert f"that of {pretrained}" in next(line for line in lines if line.startswith("one tokenizer"))
    # Sizes are those of the runs; of a control row the one that was chosen there.
    sizes = {row["row"]: (row["parameters"], row["d_ff"]) for row in before["rows"]}
    found = [(row["parameters"], row["d_ff"]) for row in results["rows"]]
    assert found == [sizes[name] for name in ("vanilla", "vanilla", "vanilla-control", "random")]
    folders = [path for row in parse_rows([rows]) for path in (tmp_path / "out" / row.folder).iterdir()]
    starts = [RunFolder(path).read_info()["from"] for path in folders]
    assert [start["scratch"] for start in starts] == [False, True, False, False]
    assert [Path(start["path"]).relative_to(pretrained).parts[0] for start in starts] == [
        *("vanilla", "vanilla", "vanilla-control", "random")
    ]
    name = "encoder.embed_tokens.weight"
    old, new = (load_file(path / "model.safetensors")[name] for path in (pretrained / "random/seed-0", folders[3]))
    assert (old - new).abs().max() < 1e-6
    # The same command has nothing to do, and a row more is added.
    state = snapshot(tmp_path / "out/random@learning_rate=1e-9")
    assert finetune(rows).results["rows"] == results["rows"]
    assert len(finetune("random@from=none").results["rows"]) == 5
    assert snapshot(tmp_path / "out/random@learning_rate=1e-9") == state
    with pytest.raises(UserError, match="got the row 'vanilla@from=none' without --from"):
        finetune(rows, None)
    # The runs may be moved.
    moved = str(shutil.copytree(pretrained, tmp_path / "elsewhere"))
    assert len(finetune("vanilla", moved).results["rows"]) == 5
    for name in ("vanilla", "random"):
        shutil.rmtree(tmp_path / f"out/{name}@from=none")
    with pytest.raises(UserError, match=r"was begun with other settings; got .*from False \(there True\)"):
        finetune("vanilla", None)


def test_runs_are_found_by_row_and_seed(pretrained: Path, tmp_path: Path) -> None:
    def found(where: str, text: str, seeds: tuple[int, ...] = (0,)) -> list[str]:
        rows = parse_rows([text])
        sources = find_sources(where, Summarization, dict.fromkeys(rows, seeds))
        return [str(source.run.path.relative_to(pretrained)) for source in sources.runs.values()]

    places = ["vanilla/seed-0", "random/seed-0"]
    assert found(str(pretrained), "vanilla,random@dropout_rate=0.3") == places
    assert found(f"{pretrained}/{{synthesizer}}/seed-{{seed}}", "vanilla,random@dropout_rate=0.3") == places
    assert found(f"{pretrained}/{{row}}/seed-0", "vanilla,vanilla-control@from=none", (0, 1)) == [
        *("vanilla/seed-0", "vanilla/seed-0", "vanilla-control/seed-0", "vanilla-control/seed-0")
    ]
    # A row of its own label comes before one of its synthesizer.
    own = tmp_path / "own"
    shutil.copytree(pretrained, own)
    shutil.copytree(own / "random", own / "random@random.std=0.1")
    record = yaml.safe_load((own / "comparison.yaml").read_text(encoding="utf-8"))
    record["rows"]["random@random.std=0.1"] = [0]
    (own / "comparison.yaml").write_text(yaml.safe_dump(record), encoding="utf-8")
    (row,) = parse_rows(["random@random.std=0.1"])
    ((_, source),) = find_sources(str(own), Summarization, {row: [0]}).runs.items()
    assert source.run.path == own / "random@random.std=0.1/seed-0"


@pytest.mark.parametrize(
    ("rows", "where", "message"),
    [
        ("vanilla", "{pretrained}/vanilla/seed-0", r"which is no comparison; expected the folder of one, or the path"),
        ("dense", "{pretrained}", r"no row 'dense' to start from; the rows are: vanilla, vanilla-control, random"),
        ("dense", "{pretrained}/{{synthesizer}}/seed-0", r"dense/seed-0: no such folder"),
        ("random", "{pretrained}/vanilla/seed-{{seed}}", r"a run of 'vanilla'; the row is 'random'"),
        (
            "vanilla-control",
            "{pretrained}/{{synthesizer}}/seed-0",
            r"a control row has a size .* by \{row\}",
        ),
        ("random-control", "{pretrained}", r"no row 'random-control' to start from"),
        ("random@num_heads=1", "{pretrained}", r"got num_heads=1, but the run to start from has 2"),
        ("random@random.std=0.1", "{pretrained}", r"got synthesizer_options=\{'random': \{'std': 0.1\}\}"),
    ],
)
def test_runs_that_are_not_there_are_refused(
    finetune: Finetune, pretrained: Path, tmp_path: Path, rows: str, where: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        finetune(rows, where.format(pretrained=pretrained))
    assert not (tmp_path / "out").exists()


def test_seeds_have_runs_of_their_own(finetune: Finetune) -> None:
    with pytest.raises(UserError, match=r"row 'vanilla' has no seed 1, but 0; for one .*/\{synthesizer\}/seed-0"):
        finetune("vanilla", seeds=(0, 1))


def test_runs_that_differ_in_more_than_synthesizers_are_refused(
    finetune: Finetune, data: Path, pretrained: Path, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(pretrained / "vanilla/seed-0", runs / "vanilla")
    shutil.copytree(pretrained / "random/seed-0", runs / "random")
    path = runs / "random/run.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("dropout_rate: 0.2", "dropout_rate: 0.5"), encoding="utf-8")
    with pytest.raises(UserError, match=r"row 'random', seed 0 has dropout_rate 0.5, others 0.2; expected models that"):
        finetune("vanilla,random", f"{runs}/{{synthesizer}}")
    # Not given is the default.
    path.write_text(text.replace("    dropout_rate: 0.2\n", ""), encoding="utf-8")
    with pytest.raises(UserError, match=r"row 'random', seed 0 has dropout_rate 0.1, others 0.2"):
        finetune("vanilla,random", f"{runs}/{{synthesizer}}")
    for name, other in (("batch_tokens", "800"), ("density", "0.3"), ("texts", "8")):
        path.write_text(re.sub(rf"\b{name}: .*", f"{name}: {other}", text), encoding="utf-8")
        shown = "train" if name == "texts" else name
        with pytest.raises(UserError, match=rf"row 'random', seed 0 has {shown} .*{other}.* expected runs of the same"):
            finetune("vanilla,random", f"{runs}/{{synthesizer}}")
    # An option that there was not yet has its default.
    assert "stream: false" in text
    path.write_text(re.sub("  stream: false\n", "", text), encoding="utf-8")
    assert find_sources(f"{runs}/{{synthesizer}}", Summarization, {row: [0] for row in parse_rows(["vanilla,random"])})
    # How often something is written does not matter.
    path.write_text(re.sub("log_interval: .*", "log_interval: 99", text), encoding="utf-8")
    assert find_sources(f"{runs}/{{synthesizer}}", Summarization, {row: [0] for row in parse_rows(["vanilla,random"])})
    path.write_text(text, encoding="utf-8")
    path = runs / "random/metrics.json"
    metrics = path.read_text(encoding="utf-8")
    path.write_text(metrics.replace('"finished": true', '"finished": false'), encoding="utf-8")
    with pytest.raises(UserError, match=r"random: not trained to its end; go on with it first"):
        finetune("vanilla,random", f"{runs}/{{synthesizer}}")
    path.write_text(metrics, encoding="utf-8")
    path = runs / "random/tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["model"]["merges"].pop()
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(UserError, match=r"vanilla and .*random have different tokenizers; expected runs that"):
        finetune("vanilla,random", f"{runs}/{{synthesizer}}")


def test_a_source_that_was_trained_again_is_noticed(finetune: Finetune, pretrained: Path, tmp_path: Path) -> None:
    shutil.copytree(pretrained, tmp_path / "pretrained")
    where = str(tmp_path / "pretrained")
    finetune("vanilla", where)
    weights = tmp_path / "pretrained/vanilla/seed-0/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")
    with pytest.raises(UserError, match=r"is not a run of this comparison; expected from.weights_sha256 '"):
        finetune("vanilla", where)


def test_rows_say_that_they_have_new_weights() -> None:
    assert parse_rows(["random@from=none"]) == [Row("random@from=none", "random", scratch=True)]
    with pytest.raises(UserError, match=r"got 'from=elsewhere' in the row .* expected from=none"):
        parse_rows(["random@from=elsewhere"])
