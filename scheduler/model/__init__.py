"""Nouns: frozen values that every other module speaks in. Nothing here does I/O or reads a clock."""
