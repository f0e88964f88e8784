"""How a task and an optimiser that follows validation meet."""

from typing import Protocol, runtime_checkable


@runtime_checkable
class ReportsValidation(Protocol):
    """A task that tells an optimiser of validations, as :class:`FollowsValidation` needs; optimisers ask for it."""

    def report_validation(self, loss: float) -> None:
        """Hand ``loss``, of a validation at the end of an epoch, to an optimiser that follows it."""


@runtime_checkable
class FollowsValidation(Protocol):
    """An optimiser that acts on the course of the validation loss, and may show other weights than it updates."""

    def show_average(self) -> None:
        """Put the weights to validate into the model; called before every validation."""

    def record_validation(self, loss: float) -> None:
        """Take the validation loss of an epoch; called once at the end of each."""
