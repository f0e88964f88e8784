"""An update waits for a GPU twice: for the norm of the gradients, and for what is logged."""

from collections import Counter

import pytest
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer
from launches import count_waits
from short_trainings import FAMILIES

from fairseq_plugins.ops import mixture_loss

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
