"""Imported before processes are forked, which makes each command a third cheaper.

hydra's parser then knows its own grammar, and garbage collections pass over what has been imported.
"""

import gc

from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

import fairseq_plugins  # noqa: F401

_TRAINING = ["data", "--arch", "transformer", "--optimizer", "adam", "--lr", "0.1", "--criterion", "cross_entropy"]
convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), _TRAINING))
convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_generation_parser(), ["data", "--path", "a.pt"]))
gc.collect()
gc.freeze()
