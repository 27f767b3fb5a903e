"""All planted bugs."""

from __future__ import annotations

from tests.planted.bugs_of_rooms import ROOM_BUGS
from tests.planted.bugs_of_steps import STEP_BUGS
from tests.planted.bugs_of_sums import SUM_BUGS

BUGS = (*SUM_BUGS, *STEP_BUGS, *ROOM_BUGS)
