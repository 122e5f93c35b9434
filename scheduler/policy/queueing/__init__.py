"""Which pending reservation comes first, and which ones cannot be served."""
