"""Many odd requests and command lines: none may end in a failure of the program. `make fuzz` runs many of them."""
