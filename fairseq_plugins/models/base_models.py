"""Trained language models that another model is built on: read from their checkpoints, or built anew from its own."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any, Dict, List, Optional, Type, Union

from fairseq import checkpoint_utils
from fairseq.models import ARCH_MODEL_REGISTRY, BaseFairseqModel, build_model
from fairseq.utils import split_paths

from fairseq_plugins.models.checkpoint_files import check_checkpoints, naming_checkpoint
from fairseq_plugins.models.recurrent_lm import RecurrentLanguageModel
from fairseq_plugins.models.text_task import TextTask
from fairseq_plugins.output_layers.gate import OUTPUT_GATES, NoGate

BaseFlags = Dict[str, Any]
"""``arch`` and the other flags that a model is built by: numbers and texts, which checkpoints may hold."""

FLAGS_IN_CHECKPOINT = "base_model_flags"
"""Where the flags of a checkpoint's model keep those of its base models, a list of :data:`BaseFlags`."""


def base_models(args: Namespace, task: TextTask, *, overrides: BaseFlags) -> List[RecurrentLanguageModel]:
    """The models that ``args`` name, for the task's dictionary.

    A training reads ``args.base_model``, checkpoints joined by colons, and keeps their flags in ``args``. Where
    ``args`` are a checkpoint's they hold these flags: the models are built by them and get their weights with the rest
    of the checkpoint. A training that is resumed after the files were removed reads the flags in its own checkpoint.

    Args:
        args: flags of the model that is built on them.
        task: whose dictionary they read.
        overrides: flags that are other than in the models' trainings.

    Raises:
        ValueError: if no model is named, or a checkpoint is missing, damaged, of another vocabulary, or holds another
            kind of model.
    """
    kept: Optional[List[BaseFlags]] = getattr(args, FLAGS_IN_CHECKPOINT, None)
    if kept is None:
        paths = split_paths(getattr(args, "base_model", None) or "")
        if not paths or not all(paths):
            raise ValueError(
                "--base-model: give the checkpoint of a trained language model, or several joined by colons"
            )
        resumed = _resumed_checkpoint(args)
        if resumed is not None and not all(Path(path).is_file() for path in paths):
            kept = getattr(_saved_flags(_read(resumed)), FLAGS_IN_CHECKPOINT, None)
        if kept is None:
            return _read_models(paths, args, task, overrides)
        setattr(args, FLAGS_IN_CHECKPOINT, kept)
    return [_build(flags, task, overrides) for flags in kept]


def _read_models(
    paths: List[str], args: Namespace, task: TextTask, overrides: BaseFlags
) -> List[RecurrentLanguageModel]:
    """The models of checkpoints with their weights; keeps their flags in ``args``."""
    check_checkpoints(paths)
    models: List[RecurrentLanguageModel] = []
    kept: List[BaseFlags] = []
    for path in paths:
        state = _read(path)
        kept.append(_checked_flags(state, path))
        with naming_checkpoint(path):
            models.append(_build(kept[-1], task, overrides))
            models[-1].load_state_dict(state["model"])
    setattr(args, FLAGS_IN_CHECKPOINT, kept)
    return models


def _build(flags: BaseFlags, task: TextTask, overrides: BaseFlags) -> RecurrentLanguageModel:
    # the host's models of argparse flags take these
    # pyrefly: ignore[bad-argument-type]
    model = build_model(Namespace(**{**flags, **overrides}), task)
    assert isinstance(model, RecurrentLanguageModel)
    return model


def _read(path: Union[str, Path]) -> Dict[str, Any]:
    with naming_checkpoint(path):
        return checkpoint_utils.load_checkpoint_to_cpu(str(path))


def _checked_flags(state: Dict[str, Any], path: str) -> BaseFlags:
    """The flags that the checkpoint's model is built by.

    Raises:
        ValueError: if it is no recurrent language model, or has a gate.
    """
    saved = vars(_saved_flags(state))
    model_class: Optional[Type[BaseFairseqModel]] = ARCH_MODEL_REGISTRY.get(saved.get("arch"))
    if model_class is None or not issubclass(model_class, RecurrentLanguageModel):
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


def _saved_flags(state: Dict[str, Any]) -> Namespace:
    """The flags of a checkpoint's model; of models that the host configures in another way, their name as ``arch``."""
    config = state.get("cfg")
    saved = state["args"] if config is None else config["model"]
    if isinstance(saved, Namespace):
        return saved
    return Namespace(arch=saved.get("_name"))


def _resumed_checkpoint(args: Namespace) -> Optional[Path]:
    """The checkpoint that ``fairseq-train`` with these flags goes on from, or None where it starts anew."""
    name, folder = getattr(args, "restore_file", None), getattr(args, "save_dir", None)
    if name is None or folder is None:
        return None
    last = Path(folder) / "checkpoint_last.pt"
    path = last if name == last.name else Path(name)
    start = getattr(args, "finetune_from_model", None)
    if not path.is_file() and name == last.name and start is not None:
        path = Path(start)
    return path if path.is_file() else None
