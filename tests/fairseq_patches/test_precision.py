"""Training with --amp, --bf16, --fp16, sparse gradients and --store-ema. For clipping with --amp see the task."""

from argparse import Namespace
from copy import deepcopy
from functools import partial
from importlib.util import find_spec
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest
import torch
import torch.nn.functional as F
from builders import build_tiny_encdec, build_tiny_gated_lm, build_tiny_lm, build_tiny_transformer, tiny_base_flags
from fairseq import optim, options, utils
from fairseq.dataclass.configs import EMAConfig
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.distributed import utils as distributed_utils
from fairseq.models.ema.ema import EMA
from fairseq.optim import AMPOptimizer, FairseqOptimizer, FP16Optimizer, MemoryEfficientFP16Optimizer
from fairseq.optim.sgd import SGD
from torch import nn

from fairseq_plugins.optim.nt_asgd import NTASGD


@pytest.mark.parametrize("step, stepped", [(AMPOptimizer.step, "inner"), (AMPOptimizer.step.__wrapped__, "wrapper")])
def test_amp_steps_the_optimizer_of_torch_and_fairseq_alone_its_wrapper(step, stepped):
    optimizer = SimpleNamespace(scaler=Mock(), optimizer="inner", fp32_optimizer="wrapper")
    step(optimizer)
    assert optimizer.scaler.mock_calls == [call.step(stepped), call.update()]


@pytest.mark.parametrize(
    "initialise, grows_after", [(AMPOptimizer.__init__, 500), (AMPOptimizer.__init__.__wrapped__, 64)]
)
def test_the_loss_scale_of_amp_grows_by_its_own_flag_unlike_by_fairseq_alone(initialise, grows_after, monkeypatch):
    # without a GPU fairseq's scaler is off and holds no interval
    monkeypatch.setattr(torch.cuda.amp, "GradScaler", partial(torch.amp.GradScaler, "cpu"))
    common = Namespace(fp16_init_scale=128, amp_init_scale=64, amp_scale_window=500, min_loss_scale=1e-4)
    optimizer = AMPOptimizer.__new__(AMPOptimizer)
    initialise(optimizer, Namespace(common=common, optimizer=None), [], None)
    assert optimizer.scaler.get_growth_interval() == grows_after


def built(averaging="triggered"):
    flags = dict(nonmonotone_interval=1, averaging=averaging, task="stateful_lm", lr_scheduler="fixed", lr=[1.0])
    flags.update(weight_decay=0.0, fp16=False, bf16=False, disable_validation=False)
    inner = NTASGD(Namespace(**flags), [torch.nn.Parameter(torch.ones(2))])
    common = Namespace(fp16_init_scale=128, amp_scale_window=None, min_loss_scale=1e-4)
    optimizer = AMPOptimizer(Namespace(common=common, optimizer=None), [], inner)
    optimizer._grad_scaler = torch.amp.GradScaler("cpu", init_scale=128.0, growth_interval=2)
    return optimizer


def test_the_scale_of_the_loss_is_saved_and_goes_on():
    stopped, resumed = built(), built()
    for _ in range(3):
        stopped.backward(stopped.optimizer.param_groups[0]["params"][0].sum())
        stopped.step()
        stopped.zero_grad()
    saved = stopped.state_dict()
    assert stopped.scaler.get_scale() == 256
    resumed.load_state_dict(saved)
    assert resumed.scaler.state_dict() == stopped.scaler.state_dict()


def test_a_state_without_a_scale_is_loaded_and_the_wrapped_optimizer_checks_it():
    resumed = built()
    resumed.load_state_dict(resumed.fp32_optimizer.state_dict())
    assert resumed.scaler.get_scale() == 128
    with pytest.raises(ValueError, match="--averaging immediate needs a fresh average"):
        built("immediate").load_state_dict(built("triggered").state_dict())


def configuration(*flags):
    parser = options.get_training_parser()
    arguments = ["data", "--task", "translation", "--arch", "transformer", "--batch-size", "1", *flags]
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, arguments))


without_xla = pytest.mark.skipif(find_spec("torch_xla") is not None, reason="--bf16 means a TPU's with torch_xla")


@without_xla
@pytest.mark.parametrize("flag", ["--bf16", "--memory-efficient-bf16"])
def test_bf16_trains_without_a_tpu_for_which_fairseq_alone_takes_it(flag):
    given, seen = configuration(flag), []
    assert given.common.tpu and not configuration().common.tpu
    distributed_utils.call_main(given, seen.append)
    (cfg,) = seen
    assert (cfg.common.bf16, cfg.common.tpu, cfg.distributed_training.tpu) == (True, False, False)


@without_xla
def test_bf16_trains_on_every_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    started = []
    monkeypatch.setattr(torch.multiprocessing, "spawn", lambda **options: started.append(options["nprocs"]))
    cfg = configuration("--bf16", "--distributed-world-size", "2")
    distributed_utils.call_main(cfg, lambda cfg: started.append("alone"))
    assert started == [2]


SETTINGS = [(FP16Optimizer, "bf16"), (FP16Optimizer, "fp16"), (MemoryEfficientFP16Optimizer, "fp16")]
OVERFLOW = 1e6


class Training:
    """A vector of 16 bits that is drawn to zero; it starts at ``weight``."""

    def __init__(self, kind, precision, weight):
        self.weight = torch.nn.Parameter(weight.to(torch.bfloat16 if precision == "bf16" else torch.float16))
        common = Namespace(
            bf16=precision == "bf16",
            fp16_init_scale=128.0,
            fp16_scale_window=4,
            fp16_scale_tolerance=0.0,
            threshold_loss_scale=None,
            min_loss_scale=1e-4,
        )
        sgd = Namespace(lr=[0.01], momentum=0.9, weight_decay=0.0)
        cfg = Namespace(common=common, optimizer=sgd)
        if kind is FP16Optimizer:
            masters = kind.build_fp32_params(sgd, [self.weight], flatten=False)
            self.optimizer = kind(cfg, [self.weight], SGD(sgd, masters), masters)
        else:
            self.optimizer = kind(cfg, [self.weight], SGD(sgd, [self.weight]), allow_unsupported=True)

    def update(self, slope):
        self.optimizer.zero_grad()
        self.optimizer.backward((self.weight * slope).square().sum())
        try:
            self.optimizer.clip_grad_norm(0.5)
            self.optimizer.step()
        except OverflowError:
            assert slope == OVERFLOW


def weights_and_scales(training, slopes):
    found = []
    for slope in slopes:
        training.update(slope)
        scaler = training.optimizer.scaler
        found.append((training.weight.tolist(), None if scaler is None else scaler.loss_scale))
    return found


def stopped_and_resumed(kind, precision):
    stopped = Training(kind, precision, torch.linspace(-1, 1, 100))
    weights_and_scales(stopped, [1, 1, 1] if precision == "bf16" else [1, 1, OVERFLOW, 1, 1])
    return stopped, Training(kind, precision, stopped.weight.detach().clone())


@pytest.mark.parametrize("kind, precision", SETTINGS)
def test_a_training_goes_on_bit_for_bit(kind, precision):
    stopped, resumed = stopped_and_resumed(kind, precision)
    resumed.optimizer.load_state_dict(deepcopy(stopped.optimizer.state_dict()))
    assert weights_and_scales(resumed, [1] * 6) == weights_and_scales(stopped, [1] * 6)


@pytest.mark.parametrize("kind, precision", SETTINGS)
def test_fairseq_alone_forgets_the_weights_in_32_bits_and_its_state_is_loaded(kind, precision):
    stopped, resumed = stopped_and_resumed(kind, precision)
    saved = deepcopy(kind.state_dict.__wrapped__(stopped.optimizer))
    resumed.optimizer.load_state_dict(deepcopy(saved))
    assert torch.equal(resumed.weight, stopped.weight)
    kind.load_state_dict.__wrapped__(resumed.optimizer, saved)
    assert weights_and_scales(resumed, [1] * 6) != weights_and_scales(stopped, [1] * 6)


def test_the_weights_of_another_precision_are_passed_over():
    stopped, _ = stopped_and_resumed(FP16Optimizer, "fp16")
    _, resumed = stopped_and_resumed(MemoryEfficientFP16Optimizer, "fp16")
    before = resumed.weight.clone()
    resumed.optimizer.load_state_dict(stopped.optimizer.state_dict())
    assert torch.equal(resumed.weight, before)


def make_optimizer(name, weights, **flags):
    settings = SimpleNamespace(**{"lr": [0.5], "momentum": 0.0, "weight_decay": 0.0, **flags}, _name=name)
    return optim.OPTIMIZER_REGISTRY[name](settings, weights)


def make_weights():
    torch.manual_seed(0)
    return nn.Parameter(torch.randn(9, 4)), nn.Parameter(torch.randn(4))


def differentiate(weights, *, sparse):
    """Gradients of an embedding that is read in two places, some rows more than once, and of a dense weight."""
    matrix, vector = weights
    first, second = (F.embedding(torch.tensor(rows), matrix, sparse=sparse) for rows in ([1, 2, 2], [2, 5]))
    (torch.sin(first @ vector).sum() + second.square().sum()).backward()
    assert matrix.grad.is_sparse == sparse


def update(name, max_norm, *, sparse, num_updates=3):
    """The gradient norms of some updates, and the weights after them."""
    weights = make_weights()
    optimizer = make_optimizer(name, weights)
    norms = []
    for _ in range(num_updates):
        optimizer.zero_grad()
        differentiate(weights, sparse=sparse)
        optimizer.multiply_grads(torch.tensor(0.25))
        norms.append(optimizer.clip_grad_norm(max_norm).clone())
        optimizer.step()
    return norms, [weight.detach() for weight in weights]


@pytest.mark.filterwarnings("error:Sparse invariant checks")
@pytest.mark.parametrize("max_norm", [0, 0.3])
@pytest.mark.parametrize("name", ["sgd", "adagrad"])
def test_updates_are_those_of_dense_gradients(name, max_norm):
    torch.testing.assert_close(update(name, max_norm, sparse=True), update(name, max_norm, sparse=False))


@pytest.mark.parametrize(
    "name, flags",
    [("sgd", dict(momentum=0.9)), ("sgd", dict(weight_decay=1e-5)), ("nag", {}), ("adagrad", dict(weight_decay=0.1))],
)
def test_what_changes_all_rows_is_refused(name, flags):
    weights = make_weights()
    optimizer = make_optimizer(name, weights, **flags)
    differentiate(weights, sparse=True)
    with pytest.raises(ValueError, match="--sparse-gradients on: .* changes all rows; give off, or --optimizer sgd"):
        optimizer.multiply_grads(0.5)
    optimizer.zero_grad()
    differentiate(weights, sparse=False)
    optimizer.multiply_grads(0.5)


def test_fairseq_alone_neither_scales_nor_clips_sparse_gradients(monkeypatch):
    monkeypatch.setattr(utils, "multi_tensor_l2norm_available", False)
    weights = make_weights()
    optimizer = make_optimizer("sgd", weights)
    differentiate(weights, sparse=True)
    before = weights[0].grad.to_dense()
    FairseqOptimizer.multiply_grads.__wrapped__(optimizer, 0.5)
    assert torch.equal(weights[0].grad.to_dense(), before)
    with pytest.raises(RuntimeError, match="norm_sparse"):
        FairseqOptimizer.clip_grad_norm.__wrapped__(optimizer, 1.0)


DECAY = 0.9
MODELS = {
    "tied language model": lambda: build_tiny_lm("tied"),
    "language model": lambda: build_tiny_lm("full"),
    "one matrix of an encoder-decoder": lambda: build_tiny_encdec("tied", share_embeddings="output"),
    "Transformer": lambda: build_tiny_transformer("transformer_drill"),
    "gate on a tied model": lambda: build_tiny_gated_lm(tiny_base_flags("tied")),
}


def average(model, *, fp32):
    """fairseq's average after two updates, each of which adds one to all weights."""
    ema = EMA(model, EMAConfig(store_ema=True, ema_decay=DECAY, ema_fp32=fp32))
    for _ in range(2):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 1
        ema.step(model)
    return ema


@pytest.mark.parametrize("fp32", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_every_weight_decays_once_an_update(name, fp32):
    model = MODELS[name]()
    before = deepcopy(model.state_dict())
    ema = average(model, fp32=fp32)
    moved = (1 - DECAY) * 2 + DECAY * (1 - DECAY)
    for key, _ in model.named_parameters(remove_duplicate=False):
        torch.testing.assert_close(ema.get_model().state_dict()[key], before[key] + moved)
    for key, weight in ema.fp32_params.items():
        torch.testing.assert_close(weight, ema.get_model().state_dict()[key].float())


def test_the_average_in_32_bits_is_that_of_a_model_in_16():
    model = build_tiny_lm("tied").half()
    before = deepcopy(model.state_dict())
    ema = average(model, fp32=True)
    for name in ("decoder.embedding.weight", "decoder.output.projection.weight"):
        change = ema.fp32_params[name] - before[name].float()
        torch.testing.assert_close(change, torch.full_like(change, 0.29), rtol=0, atol=2e-3)
    restored = EMA(model, EMAConfig(store_ema=True, ema_decay=DECAY, ema_fp32=True))
    restored.restore(ema.fp32_params, build_fp32_params=True)
    for name, weight in restored.get_model().state_dict().items():
        assert torch.equal(weight, ema.get_model().state_dict()[name]), name


def test_columns_of_the_average_keep_their_length():
    model = build_tiny_lm("full", column_norm=3.0, hidden_sizes="8", embed_dim=8)
    ema = average(model, fp32=False)
    decoder = ema.get_model().decoder
    for weight in (decoder.embedding.weight, decoder.output.projection.weight):
        torch.testing.assert_close(weight.norm(dim=0), torch.full((weight.size(1),), 3.0))


def test_fairseq_alone_decays_a_shared_matrix_twice(monkeypatch):
    monkeypatch.setattr(EMA, "_step_internal", EMA._step_internal.__wrapped__)
    model = build_tiny_lm("tied")
    before = model.decoder.embedding.weight.detach().clone()
    moved = average(model, fp32=False).get_model().decoder.embedding.weight - before
    assert moved.min() > 0.29 + 0.1
