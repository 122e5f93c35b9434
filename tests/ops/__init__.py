"""What operators are handed: compose files, alerts, policies, `alive`, `doctor`; held against what they serve."""
