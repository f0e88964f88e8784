"""A list of modules of one type."""

from typing import TYPE_CHECKING, Generic, Iterable, Iterator, TypeVar, overload

from torch import nn

M = TypeVar("M", bound=nn.Module)


class ModuleSequence(nn.ModuleList, Generic[M]):
    """A :class:`torch.nn.ModuleList` that tells type checkers the type of its modules."""

    if TYPE_CHECKING:

        def __init__(self, modules: Iterable[M]) -> None: ...

        def __iter__(self) -> Iterator[M]: ...

        @overload
        def __getitem__(self, idx: slice) -> "ModuleSequence[M]": ...

        @overload
        def __getitem__(self, idx: int) -> M: ...
