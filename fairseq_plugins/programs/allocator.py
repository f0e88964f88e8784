"""The C library's allocator in trainings, which gain by another setting."""

import os
import platform
from typing import Dict

TUNABLES = "glibc.malloc.trim_threshold=1073741824:glibc.malloc.mmap_threshold=33554432:glibc.malloc.tcache_count=0"
"""Value of ``GLIBC_TUNABLES``.

``trim_threshold``: freed memory stays with the process, up to 1 GiB. By default the C library returns what an update
freed to the system and is given fresh pages for the next one, which takes a tenth to almost a quarter of a language
model's time on a CPU. ``mmap_threshold``: 32 MiB, to which the default rises by itself; a fixed ``trim_threshold``
stops that.

``tcache_count``: no cache of small freed blocks for a thread. An aligned block leaves two small remainders. In that
cache they are handed out again and so keep the large block between them from being joined and reused: with DRILL,
blocks of 16 MB pile up.
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

    The variable is left out where the user has set the allocator by any of :data:`VARIABLES`, be it empty, or where the
    C library is not glibc. It is read at the start of a process, so the environment of one that trains is its place.
    """
    set_by_user = any(name in os.environ for name in VARIABLES)
    if set_by_user or platform.libc_ver()[0] != "glibc":
        return dict(os.environ)
    return {**os.environ, "GLIBC_TUNABLES": TUNABLES}
