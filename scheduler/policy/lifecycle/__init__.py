"""Rules of time and loss: what expires, times out, is interrupted or lost, and when the next cycle is due."""
