"""A plugin of pytest: `-p tests.pretend_cuda.plugin`, loaded before any test imports torch."""

import os

from tests.pretend_cuda.roads import arm, environment, read_settings

arm()
os.environ.update(environment(read_settings()))  # and what the tests start
