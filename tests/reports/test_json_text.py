"""Figures as JSON."""

import json
import math

import pytest

from fairseq_plugins.reports.json_text import json_text

FIGURES = {"a": math.inf, "b": [1.5, -math.inf, (math.nan, 2)], "c": {"d": None, "e": True, "f": "ä"}}
READ = {"a": None, "b": [1.5, None, [None, 2]], "c": {"d": None, "e": True, "f": "ä"}}


@pytest.mark.parametrize("options", [{}, dict(indent=2), dict(letters="kept")])
def test_what_is_no_number_is_null(options):
    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    assert json.loads(json_text(FIGURES, **options), parse_constant=refuse) == READ


def test_letters():
    assert json_text({"a": "ä"}) == '{"a": "\\u00e4"}' and json_text({"a": "ä"}, letters="kept") == '{"a": "ä"}'
