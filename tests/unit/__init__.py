"""Tests of single rules: no server, no clock."""
