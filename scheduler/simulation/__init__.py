"""The simulation: the operations of production on a virtual clock and a simulated cloud."""
