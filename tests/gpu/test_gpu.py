"""A GPU computes what the CPU does in float64. ``pytest -m gpu`` runs these tests, which skip where there is no GPU.

``FAIRSEQ_PLUGINS_TEST_DEVICE=cpu`` runs them on the CPU, to check the tests themselves. A few always run there.
"""

import logging
import math
import os
import pkgutil
import re
import subprocess
import sys
import warnings
from pathlib import Path

import computations
import pytest
import torch
from computations import _run_stack, stack_computation
from device_comparison import Computation, compare, is_run_by_cudnn, on_device, random_inputs
from looped_stacks import LOOPS, train
from paths import PLUGINS
from short_trainings import FAMILIES

import fairseq_plugins.ops
from fairseq_plugins.modules.attention import ATTENTIONS
from fairseq_plugins.modules.cell import RECURRENT_CELLS
from fairseq_plugins.modules.lstm import LSTMLayer
from fairseq_plugins.ops.cuda_graphs import LoopGraphs, Recorder
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS

DEVICE = os.environ.get("FAIRSEQ_PLUGINS_TEST_DEVICE", "cuda")
OPS, PARTS = computations.ops(), {**computations.parts(), **computations.decoders()}
DTYPES = [torch.float64, torch.float32]

needs_device = pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="torch finds no GPU here")


@pytest.mark.gpu
@needs_device
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPS)
def test_ops(name, dtype):
    compare(OPS[name](), device=DEVICE, dtype=dtype)


@pytest.mark.gpu
@needs_device
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", PARTS)
def test_components_and_decoders(name, dtype, training):
    compare(PARTS[name](), device=DEVICE, dtype=dtype, training=training)


@pytest.mark.gpu
@needs_device
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("cell", sorted(RECURRENT_CELLS))
def test_cells_run_by_cudnn_where_they_call_torchs_lstm_and_without_a_warning(cell, training):
    computation = stack_computation(cell, _run_stack, dropout=0.5)  # makes matrices that cuDNN may not accept
    module, inputs = on_device(computation, device=DEVICE, dtype=torch.float32, training=training)
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*contiguous.*")
            results = list(computation.compute(module, inputs).values())
            torch.stack([x.sum() for x in results]).sum().backward()
    finally:
        torch.set_warn_always(before)
    calls_lstm = any(
        isinstance(layer, LSTMLayer) and type(layer).forward is LSTMLayer.forward for layer in module.modules()
    )
    if DEVICE == "cuda" and calls_lstm and torch.backends.cudnn.is_available():
        assert is_run_by_cudnn(results)


class CountingRecorder(Recorder):
    num_recordings = 0

    def record(self, function):
        self.num_recordings += 1
        return super().record(function)


@pytest.mark.gpu
@needs_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", LOOPS)
def test_loops_in_cuda_graphs(name, dtype, caplog):
    recorder = CountingRecorder()
    build, num_loops = LOOPS[name]
    stack, plain = (build(graphs).to(DEVICE, dtype) for graphs in (LoopGraphs(recorder), None))
    plain.load_state_dict(stack.state_dict())
    with caplog.at_level(logging.INFO):
        found, expected = (train(one, num_updates=6) for one in (stack, plain))
    assert recorder.num_recordings == (2 * num_loops if DEVICE == "cuda" else 0)
    assert not caplog.records  # nothing failed
    for a, b in zip(found, expected, strict=True):
        assert (a - b).norm() <= torch.finfo(dtype).eps ** 0.5 * b.norm()


@pytest.mark.gpu
@pytest.mark.slow
@needs_device
@pytest.mark.parametrize("precision", ["--fp16", "--bf16", "--amp"])
@pytest.mark.parametrize("family", ["DOC", "encoder-decoder, DOC", "Transformer, MoS"])
def test_models_train_in_16_bits(family, precision, tmp_path):
    is_scaled = precision in ("--fp16", "--amp")
    if DEVICE == "cpu" and is_scaled:
        pytest.skip("fairseq scales gradients on GPUs only")
    flags = FAMILIES[family]
    if "nt_asgd" in flags:  # takes 32-bit weights alone
        place = flags.index("nt_asgd")
        flags = [*flags[:place], "adam", *flags[place + 3 :]]
    log = train_on_devices(tmp_path, *flags, "--lr", "0.01", precision, "--max-update", "60")
    losses = losses_of(log)
    assert all(map(math.isfinite, losses)) and sum(losses[-5:]) < sum(losses[:5])
    assert "loss_scale=" in log or not is_scaled


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(DEVICE == "cuda" and torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("kernels", ["auto", "plain"])
@pytest.mark.parametrize("precision", ["", "--fp16", "--bf16", "--amp"])
@pytest.mark.parametrize("backend", ["pytorch_ddp", "legacy_ddp"])
@pytest.mark.parametrize("family", ["encoder-decoder, DOC", "Transformer, MoS"])
def test_two_devices_train_like_one_with_two_batches_an_update(family, backend, precision, kernels, tmp_path):
    if DEVICE == "cpu" and (backend == "pytorch_ddp" or precision in ("--fp16", "--amp")):
        pytest.skip("fairseq has these on GPUs only")
    flags = [*FAMILIES[family], "--dropout=0", "--latent-dropout=0", "--max-update=20", f"--output-kernels={kernels}"]
    flags += [f"--ddp-backend={backend}", *([precision] if precision else [])]
    one = losses_of(train_on_devices(tmp_path, *flags, "--update-freq=2"))
    two = losses_of(train_on_devices(tmp_path, *flags, num_devices=2))
    assert len(one) == 20 and two == pytest.approx(one, rel=2e-2 if precision else 1e-3)


def train_on_devices(folder, *flags, num_devices=1):
    """The log of a training."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_devices}"]
    line = [sys.executable, *(launcher if num_devices > 1 else []), "-m", "fairseq_cli.train"]
    line += [*flags, "--user-dir", PLUGINS, "--no-save", "--disable-validation"]
    line += "--seed=1 --log-interval 1 --log-format simple --num-workers=0".split()
    line += ["--distributed-world-size=1", *(["--cpu"] * (DEVICE == "cpu"))]
    result = subprocess.run(line, cwd=folder, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout + result.stderr


def losses_of(log):
    return [float(loss) for loss in re.findall(r"train_inner .* loss=([^,]+),", log)]


# on the CPU: the comparison itself, and that it covers every part


def test_every_op_and_every_registered_part_is_compared():
    modules = {module.name for module in pkgutil.iter_modules(fairseq_plugins.ops.__path__)}
    source = Path(computations.__file__).read_text()
    compared = set(re.findall(r"fairseq_plugins\.ops\.(\w+) import|fairseq_plugins\.ops import (\w+)", source))
    # mixture_loss computes by the others
    others = {"adversarial_margin", "cuda_graphs", "kernel_choice", "kernels", "triton_mixture"}
    assert modules - others == {first or second for first, second in compared}
    registries = {"cell": RECURRENT_CELLS, "steps of": RECURRENT_CELLS, "encoder": RECURRENT_CELLS}
    for kind, registry in {**registries, "attention": ATTENTIONS, "output layer": OUTPUT_LAYERS}.items():
        found = {name.split(",")[0].removeprefix(f"{kind} ") for name in PARTS if name.startswith(f"{kind} ")}
        assert found == set(registry)


@pytest.mark.parametrize(
    "name", dict.fromkeys([*list(OPS)[::4], *list(PARTS)[::6], "language model lstm doc", "encoder-decoder dot"])
)
def test_a_part_of_the_tests_on_the_cpu(name):
    shares = compare({**OPS, **PARTS}[name](), device="cpu", dtype=torch.float32)
    assert max(shares.values()) > 0 or "scale" in name


class OnTheDevice:
    """A product that the third call computes in another way; the first two are the CPU's."""

    def __init__(self, other):
        self.other, self.calls = other, 0

    def __call__(self, module, x):
        self.calls += 1
        product = self.other if self.calls == 3 else lambda a, b: a @ b
        return {"product": product(x["a"], x["b"])}


def reversed_sums(a, b):
    total = torch.zeros(a.size(0), b.size(1), dtype=a.dtype)
    for k in reversed(range(a.size(1))):
        total = total + a[:, k : k + 1] * b[k : k + 1]
    return total


def with_tf32(a, b):
    def rounded(x):
        bits = x.detach().view(torch.int32)
        return x + (((bits + 0x1000) & ~0x1FFF).view(torch.float32) - x).detach()

    return rounded(a) @ rounded(b)


def compared(other, dtype=torch.float32):
    inputs = random_inputs(a=(20, 300), b=(300, 30))
    return compare(Computation(OnTheDevice(other), inputs), device="cpu", dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_another_order_of_sums_passes(dtype):
    assert 0 < max(compared(reversed_sums, dtype).values()) < 1


@pytest.mark.parametrize(
    "other, message",
    [
        (with_tf32, "value product errs by .* times what rounding allows"),
        (lambda a, b: a @ b + (a - a.detach()).sum() * 1e-3, "gradient a errs by"),
        (lambda a, b: (a @ b).detach(), "no gradient"),
        (lambda a, b: (a @ b) / 0, "value product is not finite"),
        (lambda a, b: (a @ b)[:3], "value product has another shape"),
    ],
)
def test_other_results_do_not_pass(other, message):
    with pytest.raises(AssertionError, match=message):
        compared(other)
