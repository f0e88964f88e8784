"""Wiring of the models, and their presets."""
