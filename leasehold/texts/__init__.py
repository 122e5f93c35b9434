"""Texts that the commands and the console share: values, events and rules as people read them."""
