"""Reports of experiments: training logs, provenance, tables, pictures and comparisons."""
