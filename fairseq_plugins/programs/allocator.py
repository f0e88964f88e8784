"""The C library's allocator in trainings, which gain by another setting."""

import os
import platform
import re
from typing import Dict, Sequence

KEPT_MEMORY = "glibc.malloc.trim_threshold=1073741824:glibc.malloc.mmap_threshold=33554432"
"""Value of ``GLIBC_TUNABLES`` that saves time: freed memory stays with the process, up to 1 GiB.

The C library would return what an update freed to the system, and get it again as fresh pages in the next one: up to a
fifth of the time of a language model. The second number is what the C library's own threshold, fixed by the first,
would rise to.
"""

NO_REMAINDERS = "glibc.malloc.tcache_count=0"
"""The value with DRILL, which saves memory: no cache of small freed blocks for a thread.

An aligned block leaves two small remainders. In that cache they are handed out again and so keep the large block
between them from being joined and reused: with DRILL, blocks of 16 MB pile up. A fixed ``MALLOC_MMAP_THRESHOLD_`` saves
as much, but every tensor then comes as fresh pages, which took a fifth of the speed where it was measured.
"""

WITH_DRILL = re.compile(r"(--(arch|output-layer|label-encoder)|-a)[= ]\S*drill")
"""What stands in the command line of a training with DRILL."""

VARIABLES = (
    "GLIBC_TUNABLES",
    "MALLOC_ARENA_MAX",
    "MALLOC_ARENA_TEST",
    "MALLOC_MMAP_MAX_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
)
"""By which a user sets the allocator."""


def training_environment(arguments: Sequence[str]) -> Dict[str, str]:
    """Environment of a training: this process's, with ``GLIBC_TUNABLES`` as fits the model.

    They are left out where the user has set the allocator, or where the C library is not glibc. They are read at the
    start of a process, so the environment of one that trains is their place.

    Args:
        arguments: of ``fairseq-train``.
    """
    set_by_user = any(name in os.environ for name in VARIABLES)
    if set_by_user or platform.libc_ver()[0] != "glibc":
        return dict(os.environ)
    tunables = NO_REMAINDERS if WITH_DRILL.search(" ".join(arguments)) else KEPT_MEMORY
    return {**os.environ, "GLIBC_TUNABLES": tunables}
