"""Arguments of a command in another order than the host's, ``COMMAND DATA --path CKPT...``, and put into it."""

import argparse
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Dict, List, Literal, Mapping, NoReturn, Optional, Sequence, Tuple, Union


def arranged_arguments(
    given: Sequence[str],
    *,
    declare: Callable[[argparse.ArgumentParser], None],
    former_flags: Mapping[str, Sequence[str]],
    former_orders: Sequence[Sequence[str]],
    named_models: Literal["on", "off"],
) -> Optional[List[str]]:
    """The arguments as they should be typed, or None where they stand right or nothing can be told.

    Args:
        given: what was typed.
        declare: declares the command's arguments.
        former_flags, former_orders, named_models: see :class:`~fairseq_plugins.flags.command.Command`.
    """
    parted = ("--path", *former_flags)
    given = [part for text in given for part in (text.split("=", 1) if text.partition("=")[0] in parted else [text])]
    words, models, rest, num_positionals = _read(given, declare, former_flags)
    stray_data = not words and num_positionals == 1 and len(models) > 1 and not all(map(_is_model, models))
    wrong = len(words) > num_positionals or any(map(_is_model, words)) or stray_data
    order = next((order for order in former_orders if len(order) == len(words)), None)
    placed = _place_by_look([*words, *models]) if wrong and num_positionals == 1 else None
    if placed is None and order is not None and not models:
        placed = _place_by_order(words, order)
    if placed is None and not wrong and any(flag in given for flag in former_flags):
        placed = {"": words, "--path": models}
    if placed is None:
        return None
    if named_models == "on":
        placed["--path"] = _named(placed["--path"])
    positionals = placed.pop("")
    flags = [part for flag, values in placed.items() if values for part in (flag, *values)]
    return [*positionals, *flags, *_renamed(rest, former_flags)]


_POOLS = ("words", "path")


class _Reader(argparse.ArgumentParser):
    """Knows the flags of a command, checks nothing, and takes any number of words beside them."""

    def __init__(self) -> None:
        super().__init__(add_help=False, allow_abbrev=False)
        self.num_positionals = 0
        super().add_argument("words", nargs="*")

    def add_argument(self, *names: str, **options: Any) -> Any:  # type: ignore[override]
        """Keep how many values a flag takes, and nothing else."""
        if not names[0].startswith("-"):
            self.num_positionals += 1
            return None
        kept = {key: options[key] for key in ("nargs", "dest") if key in options}
        action = options.get("action")
        if isinstance(action, str) and action != "append":
            kept["action"] = action
        elif action is not None and kept.get("nargs") == "+":
            kept["action"] = "extend"
        return super().add_argument(*names, **kept)

    def add_mutually_exclusive_group(self, **options: Any) -> "_Reader":  # type: ignore[override]
        """Take its flags as those of any number of groups, together or not at all."""
        return self

    def add_argument_group(self, *titles: str, **options: Any) -> Any:  # type: ignore[override]
        """Take its flags as all others, but the groups that argparse makes for itself."""
        return self if hasattr(self, "num_positionals") else super().add_argument_group(*titles, **options)

    def error(self, message: str) -> NoReturn:
        """Leave the refusal to the command's own parser."""
        raise ValueError(message)


def _read(
    given: Sequence[str], declare: Callable[[argparse.ArgumentParser], None], former_flags: Mapping[str, Sequence[str]]
) -> Tuple[List[str], List[str], List[str], int]:
    """Words without a flag, values of ``--path``, all other arguments, and the number of positional arguments."""
    reader = _Reader()
    declare(reader)
    for flag in former_flags:
        reader.add_argument(flag)
    # a word is replaced by its place, so that it is found again among equal ones
    places = [text if text.startswith("-") else f"{place}" for place, text in enumerate(given)]
    try:
        found = reader.parse_intermixed_args(places)
    except ValueError:  # a flag that the command does not have, or one without its value
        return [], [], list(given), reader.num_positionals
    words, models = (_places(getattr(found, name, None)) for name in _POOLS)
    taken = Counter([*words, *models])
    rest = [text for place, text in enumerate(given) if not taken[place] and text != "--path"]
    return [given[place] for place in words], [given[place] for place in models], rest, reader.num_positionals


def _places(values: Union[str, Sequence[str], None]) -> List[int]:
    """The places among one or more values; some values, such as negative numbers, were not replaced by theirs."""
    several = [values] if isinstance(values, str) else values or ()
    return [int(text) for text in several if text.isdigit()]


def _place_by_order(words: Sequence[str], order: Sequence[str]) -> Optional[Dict[str, List[str]]]:
    """Each word where its number says; what is no file is no text."""
    placed: Dict[str, List[str]] = {"": [], "--path": []}
    for word, name in zip(words, order):
        if name == "--input" and not Path(word).is_file():
            return None
        placed.setdefault(name if name.startswith("-") else "", []).append(word)
    return placed


def _place_by_look(words: Sequence[str]) -> Optional[Dict[str, List[str]]]:
    """Checkpoints look like checkpoints; what does not is the data, if it is one word."""
    models = [word for word in words if _is_model(word)]
    data = [word for word in words if not _is_model(word)]
    return {"": data, "--path": models} if models and len(data) == 1 else None


def _is_model(word: str) -> bool:
    return not Path(word).is_dir() and ("=" in word or word.endswith(".pt"))


def _named(models: Sequence[str]) -> List[str]:
    """NAME=CKPT for each, the folder's name where none was given."""
    names = [Path(model).parent.name or Path(model).stem for model in models]
    if len(set(names)) < len(names):
        names = [f"model {number}" for number in range(1, len(models) + 1)]
    return [model if "=" in model else f"{name}={model}" for name, model in zip(names, models)]


def _renamed(arguments: Sequence[str], former_flags: Mapping[str, Sequence[str]]) -> List[str]:
    return [part for text in arguments for part in former_flags.get(text, [text])]
