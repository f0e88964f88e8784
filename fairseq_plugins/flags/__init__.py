"""Flags: values that are read and checked, parts of a model that a flag chooses, and the base of commands.

:mod:`fairseq_plugins.flags.command` is the base, beside it stand arguments that several commands share.
"""
