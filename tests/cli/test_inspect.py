"""synthesizer inspect: from a run to pictures."""

import json
from pathlib import Path

from cli.conftest import Call


def test_what_attention_depends_on_is_measured_on_data(call: Call, trained: Path, tmp_path: Path) -> None:
    code, out, err = call("inspect", trained, "--sample", 5, "--output", tmp_path / "new/out")
    assert (code, out) == (0, f"{tmp_path / 'new/out/index.html'}\n"), err
    numbers = json.loads((tmp_path / "new/out/inspect.json").read_text(encoding="utf-8"))
    places = [(entry["stack"], entry["layer"]) for entry in numbers["attention"] if entry["stack"] != "cross"]
    assert [(entry["stack"], entry["layer"]) for entry in numbers["explained"]] == places
    assert {*numbers["explained"][0]["heads"][0]} == {"explained_by_random", "explained_by_dense"}
    assert numbers["loss"] > 0
    page = Path(out.strip()).read_text(encoding="utf-8")
    assert all(f"{title}</h2>" in page for title in ("What attention depends on", "Without a function"))
    assert {(entry["stack"], entry["layer"]) for entry in numbers["removed"]} > {*places}
