"""Loading trained language models for evaluation."""

from pathlib import Path
from typing import List, Sequence, Tuple, Union

from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.models import FairseqLanguageModel

from fairseq_plugins.data.corpus import load_dictionary
from fairseq_plugins.modules.carried_state import CarriesState


def load_language_models(
    paths: Sequence[Union[str, Path]], data_dir: str
) -> Tuple[List[FairseqLanguageModel], Dictionary]:
    """Load checkpoints in evaluation mode, with the dictionary of ``data_dir``.

    Raises:
        ValueError: if a file is missing, unreadable or refused, if its vocabulary is not the data's, or if
            the model carries no state from window to window.
    """
    for path in paths:
        if not Path(path).is_file():
            wrong = "is a directory" if Path(path).is_dir() else "does not exist"
            raise ValueError(f"{path} {wrong}: give a checkpoint, such as SAVE_DIR/checkpoint_best.pt")
    dictionary = load_dictionary(data_dir)
    models = []
    for path in paths:
        try:
            (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task(
                [str(path)], arg_overrides={"data": data_dir}
            )
        except ValueError as error:
            raise ValueError(str(error) if str(path) in str(error) else f"{path}: {error}") from error
        if not isinstance(model.decoder, CarriesState):
            raise ValueError(
                f"{path} holds a {type(model).__name__}, which carries no state from window to window: "
                "evaluate it with fairseq-eval-lm"
            )
        models.append(model.eval())
    return models, dictionary
