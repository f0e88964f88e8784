"""Imported before processes are forked, which makes each command cheaper by half.

hydra takes 0.3 s to compose the configuration of a command, most of it for parsing default values and merging what
groups of flags declare. Both are kept here: forked commands parse and compose what is new in them. Garbage collections
pass over what has been imported.
"""

import copy
import gc
import pickle
from functools import lru_cache
from typing import List, Tuple

from fairseq import options
from fairseq.dataclass import utils
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig

import fairseq_plugins  # noqa: F401

_compose = utils.compose


@lru_cache(maxsize=None)
def _composed(name: str, groups: Tuple[str, ...]) -> DictConfig:
    return _compose(name, overrides=list(groups), strict=False)


@lru_cache(maxsize=None)
def _parsed(override: str) -> bytes:
    return pickle.dumps(OverridesParser.create().parse_override(override))


def compose(name: str, overrides: List[str], strict: bool) -> DictConfig:
    """hydra's configuration: ``optimizer=adam`` chooses a group, ``optimizer.lr=[0.1]`` sets a value."""
    values = [override for override in overrides if "." in override.partition("=")[0]]
    groups = tuple(override for override in overrides if "." not in override.partition("=")[0])
    try:
        config = copy.deepcopy(_composed(name, groups))
        ConfigLoaderImpl._apply_overrides_to_config([pickle.loads(_parsed(value)) for value in values], config)
        return config
    except Exception:  # hydra says it in its own words
        return _compose(name, overrides=overrides, strict=strict)


utils.compose = compose
for task, criterion, optimizer in (
    ("stateful_lm", "regularized_cross_entropy", "nt_asgd"),
    ("stateful_lm", "regularized_cross_entropy", "adam"),
    ("stateful_lm", "noise_contrastive", "nt_asgd"),
    ("language_modeling", "cross_entropy", "adam"),
    ("translation", "regularized_cross_entropy", "adam"),
    ("translation", "label_smoothed_cross_entropy", "adam"),
):
    _flags = ["--arch", "transformer", "--task", task, "--criterion", criterion, "--optimizer", optimizer]
    _arguments = options.parse_args_and_arch(options.get_training_parser(), ["data", "--lr", "0.1", *_flags])
    utils.convert_namespace_to_omegaconf(_arguments)
_arguments = options.parse_args_and_arch(options.get_generation_parser(), ["data", "--path", "a.pt"])
utils.convert_namespace_to_omegaconf(_arguments)
gc.collect()
gc.freeze()
