"""Flags: values that are read and checked, and parts of a model that a flag chooses."""
