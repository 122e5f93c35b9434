"""What is done with the rules: commit, slow work, intake, and that any of it may be cut off anywhere."""
