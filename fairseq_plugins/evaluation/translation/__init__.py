"""Translations and headlines: decoding, raw text, attention."""
