"""The defaults that --help tells are those that hold."""

import re
from dataclasses import fields

import pytest
from fairseq.dataclass import FairseqDataclass

import fairseq_plugins  # noqa: F401  registers all parts


def subclasses(cls):
    return {cls}.union(*map(subclasses, cls.__subclasses__()))


OPTIONS = [cls for cls in subclasses(FairseqDataclass) if cls.__module__.startswith("fairseq_plugins.")]
OPTIONS.sort(key=lambda cls: f"{cls.__module__} {cls.__qualname__}")


@pytest.mark.parametrize("options", OPTIONS, ids=lambda cls: f"{cls.__module__} {cls.__qualname__}")
def test_a_told_default_is_the_fields(options):
    for field in fields(options):
        told = re.search(r"\(default: ([^ ,;)]+)", field.metadata.get("help", ""))
        if told and field.default is not None:
            assert told[1] == str(field.default), field.name


def test_defaults_are_told():
    told = [field for options in OPTIONS for field in fields(options) if "(default: " in field.metadata.get("help", "")]
    assert len(OPTIONS) > 20 and len(told) > 50
