"""Who declares an option."""

from dataclasses import dataclass

import pytest
from fairseq.dataclass import FairseqDataclass

from fairseq_plugins.flags.owners import join_owners, option_owners


@dataclass
class Base(FairseqDataclass):
    width: int = 1


@dataclass
class First(Base):
    depth: int = 2


@dataclass
class Second(Base):
    depth: int = 2


@dataclass
class DeclaredAnew(Base):
    width: int = 3


def test_an_option_belongs_to_the_dataclass_that_declares_it():
    assert option_owners(First) == {"width": Base, "depth": First}


def test_a_dataclass_that_several_inherit_is_one_owner():
    assert join_owners(option_owners(Base), {"width": Base}, option_owners(First))["width"] is Base


def test_one_option_of_two_dataclasses_is_refused_with_both():
    told = r"--depth is declared by \S*test_owners\.First and by \S*test_owners\.Second: give one of them another name"
    with pytest.raises(ValueError, match=told):
        join_owners(option_owners(First), option_owners(Second))


def test_an_option_that_a_subclass_declares_anew_is_refused():
    with pytest.raises(ValueError, match=r"--width is declared by \S*Base and by \S*DeclaredAnew"):
        option_owners(DeclaredAnew)


def test_owners_may_be_named_in_words():
    with pytest.raises(ValueError, match=r"--depth is declared by the registry of --depth and by \S*First"):
        join_owners({"depth": "the registry of --depth"}, option_owners(First))
