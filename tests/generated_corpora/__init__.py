"""Small corpora in invented languages: each module has a function that writes one."""
