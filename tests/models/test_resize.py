"""Another maximum length: what was learned is kept, and the model saves and loads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "relative"])
@pytest.mark.parametrize(
    "synthesizer",
    [
        {"encoder": "linformer", "decoder": "factorized_dense"},
        {"encoder": "random+vanilla", "decoder": "relative_random"},
        {"encoder": "local_dense", "decoder": "vanilla"},
        {"encoder": "random/vanilla", "decoder": "factorized_dense/relative_random+vanilla"},
    ],
    ids=lambda names: "/".join(names.values()),
)
@torch.no_grad()
def test_resize_position_embeddings(
    synthesizer: dict[str, Any], positions: str, tiny: Callable, tmp_path: Path
) -> None:
    fields = {"synthesizer": synthesizer, "position_embedding_type": positions, "max_position_embeddings": 10}
    model, ids = tiny(**fields, num_layers=1), torch.randint(4, 30, (2, 10))
    for parameter in model.parameters():
        parameter.normal_(std=0.3)
    before = model(ids, decoder_input_ids=ids).logits
    model.resize_position_embeddings(np.int64(17))
    torch.testing.assert_close(model(ids, decoder_input_ids=ids).logits, before)
    model.save_pretrained(tmp_path)
    loaded, longer = type(model).from_pretrained(tmp_path), torch.randint(4, 30, (2, 17))
    for each in (model, loaded):
        assert each.config.max_position_embeddings == each.model.config.max_position_embeddings == 17
    want = model(longer, decoder_input_ids=longer).logits
    torch.testing.assert_close(loaded(longer, decoder_input_ids=longer).logits, want)
    loaded.resize_position_embeddings(10)
    torch.testing.assert_close(loaded(ids, decoder_input_ids=ids).logits, before)
    if "random+vanilla" in synthesizer.values():
        with pytest.raises(ValueError, match="max_position_embeddings = 10"):
            loaded(longer, decoder_input_ids=ids)
    with pytest.raises(ValueError, match="max_length=0"):
        model.resize_position_embeddings(0)
