"""Batches after a training was resumed; that it goes on to the bit is tested with the commands."""

from fairseq.dataclass.configs import FairseqConfig
from fairseq.distributed import utils as distributed_utils
from omegaconf import OmegaConf


def configuration():
    return OmegaConf.structured(FairseqConfig)


def test_batches_are_cut_every_epoch():
    seen = []
    distributed_utils.call_main(configuration(), lambda cfg: seen.append(cfg.dataset.update_epoch_batch_itr))
    assert seen == [True]


def test_the_host_alone_cuts_batches_once():
    assert configuration().dataset.update_epoch_batch_itr is False
