"""The C library's allocator in trainings, which gain by another setting."""

import os
import platform
from typing import Dict

TUNABLES = "glibc.malloc.trim_threshold=1073741824:glibc.malloc.mmap_threshold=33554432:glibc.malloc.tcache_count=0"
"""Value of ``GLIBC_TUNABLES``.

Freed memory stays with the process, up to 1 GiB. The C library would return what an update freed to the system, and get
it again as fresh pages in the next one: up to a fifth of the time of a language model. The second number is what the C
library's own threshold, fixed by the first, would rise to.

There is no cache of small freed blocks for a thread. An aligned block leaves two small remainders. In that cache they
are handed out again and so keep the large block between them from being joined and reused: with DRILL, blocks of 16 MB
pile up.
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
    """Environment of a training: this process's, with ``GLIBC_TUNABLES``.

    They are left out where the user has set the allocator, or where the C library is not glibc. They are read at the
    start of a process, so the environment of one that trains is their place.
    """
    set_by_user = any(name in os.environ for name in VARIABLES)
    if set_by_user or platform.libc_ver()[0] != "glibc":
        return dict(os.environ)
    return {**os.environ, "GLIBC_TUNABLES": TUNABLES}
