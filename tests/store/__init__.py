"""Tests of the Store port: one contract suite on every store, and what is particular to one of them."""
