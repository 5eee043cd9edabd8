"""`import synthetic_attention` registers the models, whatever is imported from transformers afterwards."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("first", ["AutoConfig", "PreTrainedModel", "GenerationMixin"])
def test_models_register_whatever_is_imported_first(first: str) -> None:
    code = (
        "import sys, synthetic_attention\n"
        "assert 'transformers' not in sys.modules\n"
        f"from transformers import {first}\n"
        "from transformers import AutoConfig, AutoModelForSeq2SeqLM\n"
        "config = AutoConfig.for_model('synthesizer', vocab_size=9, d_model=4, num_heads=2, d_ff=4, num_layers=1)\n"
        "print(type(AutoModelForSeq2SeqLM.from_config(config)).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "SynthesizerForConditionalGeneration", done.stderr
