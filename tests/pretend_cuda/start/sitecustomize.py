"""Python imports this when it starts, where this folder is on its path: processes pretend that are told to."""

import os

if "DPRECIPE_PRETENDED_CUDA" in os.environ:
    from tests.pretend_cuda.roads import arm

    arm()
