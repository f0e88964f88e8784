"""The output layer that the README gives as an example."""

import subprocess
import sys

from commands import ENVIRONMENT, ROOT
from readme_commands import run_sections

SECTIONS = [("README.md", "Add a part of your own")]
CHECK = """
import sys

sys.path[:0] = [".", sys.argv[1]]
import torch
from block import ScaledSoftmax
from builders import build_encdec, build_tiny_encdec, build_tiny_lm, build_tiny_transformer

from fairseq_plugins.output_layers.base import OUTPUT_LAYERS

assert OUTPUT_LAYERS["scaled"] is ScaledSoftmax
model = build_tiny_lm("scaled", logit_scale=0.5).double().eval()
tokens = torch.randint(4, 20, (2, 9))
target = tokens.flip(1)
loss, _ = model(tokens, target=target)
log_probs, extra = model(tokens)
output = model.decoder.output
hidden, weight = extra["states"].layers[-1], output.projection.weight
logits = (0.5 + output.shift) * hidden @ weight.T + output.projection.bias
torch.testing.assert_close(log_probs, torch.log_softmax(logits, dim=-1))
torch.testing.assert_close(loss, -log_probs.gather(-1, target.unsqueeze(-1)).sum())
loss.backward()
assert output.shift.grad.abs() > 0
translators = build_tiny_encdec("scaled"), build_tiny_transformer("transformer_full", output_layer="scaled")
for translator in translators:
    assert any(isinstance(part, ScaledSoftmax) for part in translator.modules())
for flags in {}, {"init": "by-layer"}:
    started = build_encdec("lstm_encdec", 19, 23, output_layer="scaled", logit_scale=5.0, **flags)
    (output,) = (part for part in started.modules() if isinstance(part, ScaledSoftmax))
    assert abs(output.logit_scale + output.shift - 5) < 0.2, flags
print("checked")
"""


def test_it_is_a_layer_of_every_model(tmp_path):
    run_sections(SECTIONS, tmp_path)
    checked = subprocess.run(
        [sys.executable, "-c", CHECK, str(ROOT / "tests")],
        cwd=tmp_path,
        env={**ENVIRONMENT, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert checked.stdout == "checked\n", checked.stderr
