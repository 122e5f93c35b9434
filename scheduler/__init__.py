"""The scheduler: pure rules that decide which reservation gets which slot, the operations around them, and the
ports.
"""
