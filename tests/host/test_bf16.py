"""``--bf16`` without a TPU."""

from importlib.util import find_spec

import pytest
import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.distributed import utils as distributed_utils


def configuration(*flags):
    parser = options.get_training_parser()
    arguments = ["data", "--task", "translation", "--arch", "transformer", "--batch-size", "1", *flags]
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, arguments))


def test_the_host_alone_takes_bf16_for_a_tpu():
    assert configuration("--bf16").common.tpu and not configuration().common.tpu


@pytest.mark.skipif(find_spec("torch_xla") is not None, reason="torch_xla is installed: --bf16 means a TPU's")
@pytest.mark.parametrize("flag", ["--bf16", "--memory-efficient-bf16"])
def test_bf16_trains_without_a_tpu(flag):
    seen = []
    distributed_utils.call_main(
        configuration(flag), lambda cfg: seen.append((cfg.common.bf16, cfg.common.tpu, cfg.distributed_training.tpu))
    )
    assert seen == [(True, False, False)]


@pytest.mark.skipif(find_spec("torch_xla") is not None, reason="torch_xla is installed: --bf16 means a TPU's")
def test_bf16_trains_on_every_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    started = []
    monkeypatch.setattr(torch.multiprocessing, "spawn", lambda **options: started.append(options["nprocs"]))
    cfg = configuration("--bf16", "--distributed-world-size", "2")
    distributed_utils.call_main(cfg, lambda cfg: started.append("alone"))
    assert started == [2]
