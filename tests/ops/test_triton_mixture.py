"""Triton's kernels without a GPU: in Triton's interpreter, and compiled for two GPUs."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed: pip install triton")
FOLDER = Path(__file__).parent


@pytest.mark.slow
def test_kernels_in_the_interpreter():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    arguments = ["-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider", str(FOLDER / "interpreted_triton.py")]
    done = subprocess.run([sys.executable, "-m", "pytest", *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert re.search(r"\b[1-9][0-9]* passed", done.stdout) and "skipped" not in done.stdout


POINTERS = ["logits", "probs", "target", "log_prob", "on_target", "rest", "log_sum"]


@pytest.mark.parametrize(
    "capability, logits_type, vocab_size, is_aligned",
    [(80, "fp32", 10_016, True), (90, "bf16", 33_280, True), (90, "fp32", 10_002, False)],
)
def test_compiled_kernels_spill_nothing_and_load_sixteen_bytes(capability, logits_type, vocab_size, is_aligned):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from fairseq_plugins.ops import triton_mixture

    if "constexprs" not in inspect.signature(ASTSource).parameters:
        pytest.skip("Triton below 3.3 compiles by another interface")
    types = {name: "*fp32" for name in POINTERS}
    types.update(logits=f"*{logits_type}", probs=f"*{logits_type}", target="*i64", num_experts="i32")
    constants = {"vocab_size": vocab_size, "writes": True, "block": triton_mixture.WORDS_AT_ONCE}
    function = triton_mixture.softmax_rows
    signature = {name: types.get(name, "constexpr") for name in function.arg_names}
    # pointers to whole tensors lie at multiples of 16 bytes
    attributes = {(function.arg_names.index(name),): [["tt.divisibility", 16]] for name in POINTERS}
    compiled = triton.compile(
        ASTSource(fn=function, signature=signature, constexprs=constants, attrs=attributes),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": triton_mixture.NUM_WARPS},
    )
    ptx = compiled.asm["ptx"]
    wide = len(re.findall(r"ld\.global[.\w:]*\.v4\.b32", ptx)), len(re.findall(r"st\.global[.\w:]*\.v4\.b32", ptx))
    assert (min(wide) > 0) == is_aligned
    assert ".local" not in ptx
