"""Wrap functions and methods of fairseq in place."""

import functools
from types import ModuleType
from typing import Any, Callable, Iterator, Union


def wrap(owner: Union[ModuleType, type], name: str, wrapper: Callable[..., Any]) -> None:
    """Replace the function or method ``name`` of ``owner`` by ``wrapper(function, *args, **kwargs)``.

    Wrapping twice with the same wrapper has no effect. Static methods stay static.
    """
    function = getattr(owner, name)
    if wrapper in _wrappers(function):
        return

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return wrapper(function, *args, **kwargs)

    vars(wrapped)["wrapper"] = wrapper
    is_static = isinstance(vars(owner).get(name), staticmethod)
    setattr(owner, name, staticmethod(wrapped) if is_static else wrapped)


def _wrappers(function: Any) -> Iterator[Callable[..., Any]]:
    while hasattr(function, "wrapper"):
        yield function.wrapper
        function = function.__wrapped__
