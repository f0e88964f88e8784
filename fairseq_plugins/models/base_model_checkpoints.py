"""Checkpoints of trained language models that another model is built on."""

from argparse import ArgumentParser, Namespace
from typing import Any, Dict, Optional, Tuple, Type

from fairseq.models import ARCH_MODEL_REGISTRY, build_model

from fairseq_plugins.data.text_task import TextTask
from fairseq_plugins.host.checkpoint_fit import building_model, fitting_weights
from fairseq_plugins.models.checkpoint_files import naming_checkpoint, read_state
from fairseq_plugins.models.recurrent_lm import RecurrentLanguageModel
from fairseq_plugins.output_layers.gate import OUTPUT_GATES, NoGate

BaseFlags = Dict[str, Any]
"""``arch`` and the other flags that a model is built by: numbers and texts, which checkpoints may hold."""


def read_base_model(path: str, task: TextTask, overrides: BaseFlags) -> Tuple[BaseFlags, RecurrentLanguageModel]:
    """The flags of a checkpoint's model, and the model with its weights.

    Args:
        path: of the checkpoint.
        task: whose dictionary the model reads.
        overrides: flags that are other than in its training.

    Raises:
        ValueError: if the checkpoint is damaged, of another vocabulary, or holds another kind of model.
    """
    state = read_state(path)
    flags = _checked_flags(state, path)
    with naming_checkpoint(path), building_model(path, state):
        model = build_base_model(flags, task, overrides)
        with fitting_weights(path):
            model.load_state_dict(state["model"])
    return flags, model


def build_base_model(flags: BaseFlags, task: TextTask, overrides: BaseFlags) -> RecurrentLanguageModel:
    """A model by its flags, as the host builds it; its loss is the fused one, which holds no logits of all tokens.

    Raises:
        ValueError: if the flags are of another kind of model.
    """
    arch = flags.get("arch")
    if find_base_class(arch) is None:
        raise ValueError(f"--arch {arch} is no recurrent language model of this package")
    taken = {name: value for name, value in {**flags, **overrides}.items() if name != "output_loss"}
    # the host's models of argparse flags take these
    # pyrefly: ignore[bad-argument-type]
    model = build_model(Namespace(**taken), task)
    assert isinstance(model, RecurrentLanguageModel)
    return model


def find_base_class(arch: object) -> Optional[Type[RecurrentLanguageModel]]:
    """The class of an architecture, if it is one that other models can be built on."""
    model_class = ARCH_MODEL_REGISTRY.get(arch) if isinstance(arch, str) else None
    return model_class if model_class is not None and issubclass(model_class, RecurrentLanguageModel) else None


def saved_flags(state: Dict[str, Any]) -> Namespace:
    """The flags of a checkpoint's model; of models that the host configures in another way, their name as ``arch``."""
    config = state.get("cfg")
    saved = state.get("args") if config is None else config.get("model")
    if isinstance(saved, Namespace):
        return saved
    return Namespace(arch=None if saved is None else saved.get("_name"))


def _checked_flags(state: Dict[str, Any], path: str) -> BaseFlags:
    """The flags that the checkpoint's model is built by.

    Raises:
        ValueError: if it is no recurrent language model, or has a gate.
    """
    saved = vars(saved_flags(state))
    model_class = find_base_class(saved.get("arch"))
    if model_class is None:
        raise ValueError(
            f"{path} holds a model of --arch {saved.get('arch')}: --base-model takes recurrent language models of this "
            "package, such as lstm_lm_awd"
        )
    gate = saved.get(OUTPUT_GATES.destination, NoGate.name)
    if gate != NoGate.name:
        raise ValueError(f"{path} has a gate already, {OUTPUT_GATES.flag} {gate}: give a model without one")
    parser = ArgumentParser(add_help=False)
    model_class.add_args(parser)
    names = {"arch", *(action.dest for action in parser._actions)}
    return {name: value for name, value in saved.items() if name in names}
