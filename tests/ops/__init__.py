"""What operators use: compose files, alerts, policies, `alive`, `doctor`; compared with the code that they serve."""
