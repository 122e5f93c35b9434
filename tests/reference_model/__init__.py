"""A second tick, as naive as can be, and generated scenarios in which it has to decide what the engine decides."""
