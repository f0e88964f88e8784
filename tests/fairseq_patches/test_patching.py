"""Wrapping functions and methods."""

from inspect import unwrap
from types import SimpleNamespace

from fairseq_plugins.fairseq_patches.patching import wrap


def add_one(function, *args, **kwargs):
    return function(*args, **kwargs) + 1


def double(function, *args, **kwargs):
    return 2 * function(*args, **kwargs)


class Owner:
    @staticmethod
    def static(x):
        """What it does."""
        return x

    def method(self, x, *, y=0):
        return x + y


def test_the_wrapper_calls_the_function():
    owner = SimpleNamespace(function=lambda x: 10 * x)
    wrap(owner, "function", add_one)
    assert owner.function(2) == 21


def test_methods_and_static_methods_stay_what_they_are():
    wrap(Owner, "static", add_one)
    wrap(Owner, "method", add_one)
    assert Owner.static(1) == 2 and Owner().static(1) == 2
    assert Owner().method(1, y=5) == 7
    assert Owner.static.__doc__ == "What it does."


def test_the_same_wrapper_wraps_once_and_another_one_besides():
    owner = SimpleNamespace(function=lambda x: x)
    original = owner.function
    wrap(owner, "function", add_one)
    wrap(owner, "function", double)
    both = owner.function
    wrap(owner, "function", add_one)
    assert owner.function is both and both(1) == 4
    assert unwrap(both) is original
