"""A checkpoint that a flag names is there, or the training does not begin.

``--restore-file ''`` names none: the training begins anew.

Patches: fairseq begins anew where ``--restore-file`` or ``--continue-once`` names none, or ``--finetune-from-model`` a
folder, and says so in the log alone.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as ``test_the_host_alone_begins_anew`` passes.
"""

from pathlib import Path
from typing import Any, Callable, Optional, Tuple

from fairseq import checkpoint_utils
from fairseq.dataclass.configs import CheckpointConfig
from fairseq.file_io import PathManager
from fairseq.trainer import Trainer

from fairseq_plugins.host.wrapping import wrap

LAST = "checkpoint_last.pt"
"""Of ``--save-dir`` and not of the working directory, and where it is missing a training begins."""


def mend() -> None:
    """Wrap the host's reading of a training's state."""
    wrap(checkpoint_utils, "load_checkpoint", _check_named)


def _check_named(
    load_checkpoint: Callable[..., Any], cfg: CheckpointConfig, trainer: Trainer, *args: Any, **options: Any
) -> Any:
    """Go on from a checkpoint.

    Raises:
        ValueError: if one is named that does not exist.
    """
    if trainer.data_parallel_rank == 0:  # which reads it for all
        flag, path = _named_checkpoint(cfg, trainer.checkpoint_suffix)
        if path is not None and not PathManager.isfile(path):
            kind = "is no file" if PathManager.exists(path) else "does not exist"
            raise ValueError(
                f"{flag} {path} {kind}: give the path of a checkpoint, such as {cfg.save_dir}/checkpoint_best.pt, or "
                f"leave {flag} out to go on from {cfg.save_dir}/{LAST}, or to begin where that does not exist"
            )
    return load_checkpoint(cfg, trainer, *args, **options)


def _named_checkpoint(cfg: CheckpointConfig, suffix: str) -> Tuple[str, Optional[str]]:
    """The flag that is heeded, and its file where it names one; the suffix is of a process that holds a part."""
    if cfg.restore_file == "":
        return "--restore-file", None
    if cfg.restore_file != LAST:
        return "--restore-file", cfg.restore_file.replace(".pt", f"{suffix}.pt")
    begins = not PathManager.exists(str(Path(cfg.save_dir, LAST.replace(".pt", f"{suffix}.pt"))))
    if not begins:
        return "--restore-file", None
    once = getattr(cfg, "continue_once", None)
    return ("--continue-once", once) if once else ("--finetune-from-model", cfg.finetune_from_model)
