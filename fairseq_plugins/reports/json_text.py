"""Figures as JSON that every reader takes."""

import json
import math
from typing import Any, Literal, Mapping, Optional


def json_text(
    figures: Mapping[str, Any], *, indent: Optional[int] = None, letters: Literal["escaped", "kept"] = "escaped"
) -> str:
    """An object in JSON.

    JSON has no number that is infinite or not a number; ``null`` stands for both.

    Args:
        figures: nested dictionaries, lists and tuples of texts, numbers and None.
        indent: blanks of a level; None writes one line.
        letters: whether those beyond ASCII are escaped.
    """
    return json.dumps(_finite(figures), indent=indent, ensure_ascii=letters == "escaped", allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return value
