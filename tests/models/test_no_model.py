"""`kind: none`: no tensors, nothing to build, and no `model.json`."""

from __future__ import annotations

import pytest

from dprecipe.data.facts import DataFacts
from dprecipe.data.targets import ClassTarget
from dprecipe.faults import DataFault
from dprecipe.models.build import build
from dprecipe.models.checks import check_data
from dprecipe.models.file import parse_description
from dprecipe.models.layout import layer_shapes, layer_sizes
from dprecipe.models.schema import NoModel

NOTHING = NoModel(kind="none")


def test_it_has_no_tensors_and_fits_any_data() -> None:
    assert layer_shapes(NOTHING, (7,), 3) == {}
    assert layer_sizes(NOTHING, (7,), 3) == ()
    assert check_data(NOTHING, DataFacts((), ClassTarget(3), ())) == []


def test_nothing_is_built_of_it() -> None:
    with pytest.raises(ValueError, match="there is no model to build"):
        build(NOTHING, (7,), 3, 0)
    text = '{"schema": "dprecipe.model/v1", "model": {"kind": "none"}, "shape": [7], "classes": 3, "source_shape": [7]}'
    with pytest.raises(DataFault, match="it describes no model"):
        parse_description(text)
