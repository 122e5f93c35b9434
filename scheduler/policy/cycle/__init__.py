"""The state of one scheduling cycle: the scratch copies and decisions that all steps share."""
