"""Token streams and their windows, and the files that corpora are read from."""
