"""What experiments left and found: training logs, where figures come from, tables, pictures, comparisons."""
