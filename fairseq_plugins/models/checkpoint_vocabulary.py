"""Whether a checkpoint fits the data's dictionary."""

from typing import Dict

from torch import Tensor, nn


def check_vocabulary_size(state_dict: Dict[str, Tensor], name: str, embedding: nn.Embedding, *, text: str = "") -> None:
    """Compare the embedding ``name`` of a checkpoint with the model's, which is as large as the dictionary.

    ``text`` says whose words they are, such as "source", where a model reads several texts.

    Raises:
        ValueError: if their numbers of words differ.
    """
    saved = state_dict[name].size(0) if name in state_dict else embedding.num_embeddings
    if saved != embedding.num_embeddings:
        side = f"{text} " if text else ""
        raise ValueError(
            f"the checkpoint was trained with {saved:,} {side}vocabulary items but the data directory's {side}"
            f"dictionary gives {embedding.num_embeddings:,}: point to the data that the checkpoint was trained on"
        )
