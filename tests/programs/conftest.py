"""Signals that programs are sent."""

import signal

import pytest


@pytest.fixture
def heeded(number):
    """The signal ``number`` is not ignored here, as it may be where tests run in the background of a shell."""
    before = signal.signal(number, lambda *_: None)
    yield
    signal.signal(number, before)
