from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from dprecipe.data.schema import Data


@pytest.fixture
def block() -> Callable[..., Data]:
    """The `data` block of a recipe, from its JSON, read as strictly as a recipe is."""

    def make(train: dict[str, Any], **rest: Any) -> Data:
        return Data.model_validate_json(json.dumps({"train": train, "size": 4, **rest}))

    return make
