"""The folder that a process with a shifted clock has on its PYTHONPATH; Python imports `sitecustomize` from it."""
