"""synthesizer inspect: from a run to pictures that can be opened."""

import json
import struct
from pathlib import Path


def test_pictures_page_and_numbers(call, trained: Path, tmp_path: Path) -> None:
    output = tmp_path / "new" / "out"
    code, out, err = call("inspect", trained, "one plus two", "--sample", 3, "--output", output)
    assert code == 0, err
    assert out == f"{output / 'index.html'}\n"
    numbers = json.loads((output / "inspect.json").read_text(encoding="utf-8"))
    pictures = [name for name in numbers["files"] if name.endswith(".png")]
    assert len(pictures) == 10
    for name in pictures:
        content = (output / name).read_bytes()
        assert content.startswith(b"\x89PNG")
        width, height = struct.unpack(">II", content[16:24])
        assert 300 < width < 3500
        assert 300 < height < 3500


def test_wrong_options(call, trained: Path, tmp_path: Path) -> None:
    for arguments, message, exit_code in (
        ([tmp_path / "nowhere"], "expected a folder made by `synthesizer train`", 1),
        ([trained, ""], "got a blank text", 1),
        ([trained, "--split", "tset"], "the splits there are: test, test_templates, train, valid", 1),
        ([trained, "--sample", 0], "--sample", 2),
        ([trained, "--examples", 0], "--examples", 2),
    ):
        code, out, err = call("inspect", *arguments)
        assert (code, out, err.count("\n")) == (exit_code, "", 1), err
        assert message in err
    assert not (trained / "inspect").exists()
