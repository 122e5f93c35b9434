"""Rules of time and loss: what expires or times out, what happens after an interruption or a loss, and when the next
cycle is due.
"""
