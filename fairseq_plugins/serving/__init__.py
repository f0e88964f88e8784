"""Trained models behind HTTP."""
