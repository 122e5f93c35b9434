"""Are the tests of the rules any good? Rules are turned into wrong ones, and each has to turn a test red."""
