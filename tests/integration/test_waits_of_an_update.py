"""An update waits for a GPU twice: for the norm of the gradients, and for what is logged."""

from collections import Counter
from typing import Any, Callable

import pytest
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer
from short_trainings import FAMILIES
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from fairseq_plugins.ops import mixture_loss


class _WaitRecorder(TorchFunctionMode):
    """Takes a tensor for one of a GPU, unless it comes from ``Tensor.cpu`` or is computed from such tensors alone."""

    READ = {"cpu", "item", "tolist", "__bool__", "__float__", "__int__", "__format__", "nonzero"}

    def __init__(self):
        super().__init__()
        self.waits: "Counter[str]" = Counter()
        self._on_cpu = WeakIdKeyDictionary()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        given = [x for x in tree_leaves((args, kwargs or {})) if isinstance(x, Tensor)]
        were_on_cpu = bool(given) and all(x in self._on_cpu for x in given)
        if name in self.READ and not were_on_cpu:
            self.waits[name] += 1
        result = function(*args, **(kwargs or {}))
        if were_on_cpu or name == "cpu":
            self._on_cpu.update({x: True for x in tree_leaves(result) if isinstance(x, Tensor)})
        return result


def count_waits(function: Callable[[], Any]) -> "Counter[str]":
    """Names of the methods by which a call reads values of tensors of a GPU, and how often."""
    with _WaitRecorder() as recorder:
        function()
    return recorder.waits


NOISE = ["--sparse-gradients", "off", "--optimizer", "sgd"]  # Adagrad of torch counts steps in tensors on the CPU


@pytest.mark.parametrize(
    "family, flags, others",
    [
        ("DOC", [], {}),
        ("rectifier network, noise contrastive", NOISE, {}),
        ("encoder-decoder, DOC", [], {"__bool__": 1}),  # for padding in the source
    ],
)
def test_an_update(family, flags, others, monkeypatch):
    monkeypatch.setattr(mixture_loss, "check_targets", lambda *_, **__: None)  # on CPUs alone
    args = [*FAMILIES[family], *flags, "--output-kernels", "plain", "--cpu"]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), args))
    task = tasks.setup_task(cfg.task)
    trainer = Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))
    batches = trainer.get_train_iterator(epoch=1).next_epoch_itr(shuffle=False)
    trainer.train_step([next(batches)])
    batch = next(batches)
    assert count_waits(lambda: trainer.train_step([batch])) == Counter(cpu=2, **others)
