"""The C library's allocator in trainings: less memory kept of freed tensors."""

import os
import platform
from typing import Dict

TUNABLES = "glibc.malloc.tcache_count=0"
"""Value of ``GLIBC_TUNABLES``: no cache of small freed blocks for a thread.

An aligned block leaves two small remainders. In that cache they are handed out again and so keep the large block
between them from being joined and reused: with DRILL, blocks of 16 MB pile up. A fixed ``MALLOC_MMAP_THRESHOLD_`` saves
as much, but every tensor then comes as fresh pages, which took a fifth of the speed
where it was measured.
"""

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


def training_environment() -> Dict[str, str]:
    """Environment of a training: this process's, with :data:`TUNABLES`.

    They are left out where the user has set the allocator, or where the C library is not glibc. They are read at the
    start of a process, so the environment of one that trains is their place; ``mallopt`` does not have this one.
    """
    untouched = platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in VARIABLES)
    return {**os.environ, **({} if untouched else {"GLIBC_TUNABLES": TUNABLES})}
