"""Damaged run folders: every command uses the run or reports one line, and runs no code from a file of it."""

import io
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fuzz.harness import LONG, fuzzed, misshapen, mutated, time_limit
from fuzz.runs import CANARY, LANGUAGES, TAG, check_reported, home, run_command

__all__ = ["home"]

# `inspect` and `export` take seconds, and open a run as `generate` does.
QUICK = ("generate", "evaluate", "resume", "from")
COMMANDS = {
    "generate": ("generate", "run", "the tea", "--num-beams", "2"),
    "evaluate": ("evaluate", "run", "--split", "valid", "--num-beams", "1"),
    "resume": ("train", "translation", "--resume", "--steps", "5", "--output", "run"),
    "from": ("train", "translation", "--from", "run", "--data", "data", *LANGUAGES, "--steps", "1", "--output", "new"),
    "inspect": ("inspect", "run", "--data", "data", "--output", "new"),
    "export": ("export", "run", "--format", "torch", "--output", "new"),
}


class Payload:
    """Creates a file when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, (f"touch ${CANARY}",)


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _pickled() -> list[bytes]:
    """The payload as a pickle, and in the formats of torch.save."""
    plain, archive, legacy = io.BytesIO(), io.BytesIO(), io.BytesIO()
    pickle.dump(Payload(), plain)
    torch.save({"state": Payload(), "param_groups": [Payload()]}, archive)
    torch.save([Payload()], legacy, _use_new_zipfile_serialization=False)
    return [file.getvalue() for file in (plain, archive, legacy)]


def _structured(draw: st.DrawFn, path: Path) -> bytes:
    """A JSON or YAML file with a misshapen value."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".yaml":
        return yaml.safe_dump(draw(misshapen(yaml.safe_load(text)))).encode("utf-8", "surrogatepass")
    if path.suffix == ".jsonl":
        return "\n".join(json.dumps(draw(misshapen(json.loads(line)))) for line in text.splitlines()).encode()
    return json.dumps(draw(misshapen(json.loads(text)))).encode()


# Files that some library would load or execute.
PLANTED = ("pytorch_model.bin", "scaler.pt", "training_args.bin", "adapter_model.bin", "rng_state_0.pth")
# Those that resuming reads, or refuses.
LOADED = ("optimizer.pt", "scheduler.pt", "rng_state.pth", "scaler.pt")
CODE = ("modeling_evil.py", "custom_generate/generate.py", "tokenization_evil.py", "configuration_evil.py")


def _plant_code(run: Path, target: Path | None = None) -> None:
    """Write Python files, and entries that name them into the configurations other than `target`."""
    code = f"import os\nos.system('touch ${CANARY}')\nclass Evil: ...\ndef generate(*a, **k): ...\n"
    for planted in CODE:
        (run / planted).parent.mkdir(exist_ok=True)
        (run / planted).write_text(code, encoding="utf-8")
    for file, entry in (("config.json", "modeling_evil.Evil"), ("tokenizer_config.json", "tokenization_evil.Evil")):
        if target != run / file:
            auto = dict.fromkeys(("AutoConfig", "AutoModel", "AutoModelForSeq2SeqLM", "AutoTokenizer"), entry)
            values = {"auto_map": auto, "custom_generate": str(run), "custom_pipelines": {"x": {"impl": entry}}}
            content = json.loads((run / file).read_text(encoding="utf-8"))
            (run / file).write_text(json.dumps({**content, **values}), encoding="utf-8")


@st.composite
def damages(draw: st.DrawFn, home: Path) -> None:
    """Damage one file of `run`, or plant one."""
    run = home / "run"
    checkpoint = next((run / "checkpoints").iterdir())
    name = draw(st.sampled_from(_files(run)))
    path, kind = (
        run / name,
        draw(st.sampled_from(("bytes", "bytes", "values", "values", "values", "swap", "evil", "type"))),
    )
    if kind == "values" and path.suffix in (".json", ".yaml", ".jsonl"):
        path.write_bytes(_structured(draw, path))
    elif kind == "swap":
        path.write_bytes((run / draw(st.sampled_from(_files(run)))).read_bytes())
    elif kind == "type":
        path.unlink()
        draw(st.sampled_from((path.mkdir, lambda: path.symlink_to(path.name), lambda: None)))()
    elif kind == "evil":
        target = draw(
            st.sampled_from((path, *(folder / planted for folder in (run, checkpoint) for planted in PLANTED)))
        )
        target.write_bytes(draw(st.sampled_from((*_pickled(), TAG.encode()))))
        _plant_code(run, target)
    else:
        path.write_bytes(draw(mutated(path.read_bytes())))


@given(st.data())
@fuzzed(10, 300, shrink=False)
def test_damaged_runs(home: Path, data: st.DataObject) -> None:
    shutil.copytree(home / "intact", home / "run")
    try:
        data.draw(damages(home))
        command = COMMANDS[data.draw(st.sampled_from([*COMMANDS, *QUICK, *QUICK, *QUICK] if LONG else QUICK))]
        with time_limit(60):
            check_reported(*run_command(*command))
        assert not (home / CANARY).exists()
        assert {path.name for path in home.iterdir()} <= {"data", "intact", "run", "new"}
    finally:
        for name in ("run", "new"):
            path = home / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


@pytest.mark.parametrize("name", [*LOADED, "Python files"])
def test_no_code_runs(home: Path, name: str) -> None:
    run = home / "run"
    shutil.copytree(home / "intact", run)
    try:
        checkpoint = next((run / "checkpoints").iterdir())
        for file in (name,) if name in LOADED else {*PLANTED} - {*LOADED}:
            for folder in (run, checkpoint):
                (folder / file).write_bytes(_pickled()[1])
        _plant_code(run)
        for command in ("resume",) if name in LOADED else ("generate", "resume"):
            code, err = run_command(*COMMANDS[command])
            check_reported(code, err)
            assert code == int(name in LOADED), err
            assert not (home / CANARY).exists()
    finally:
        for folder in (run, home / "new"):
            shutil.rmtree(folder, ignore_errors=True)


def test_the_payload_works(home: Path) -> None:
    plain, *saved = _pickled()
    loads = [lambda: pickle.loads(plain)]
    loads += [lambda file=file: torch.load(io.BytesIO(file), weights_only=False) for file in saved]
    for load in loads:
        load()
        assert (home / CANARY).exists()
        (home / CANARY).unlink()
