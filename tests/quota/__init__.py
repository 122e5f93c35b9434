"""The engine under `queue: quota` beside a plain scheduler that was written from qscheduler's page alone."""
