"""An independent, naive model of a tick, and generated scenarios in which it has to decide what the engine decides."""
