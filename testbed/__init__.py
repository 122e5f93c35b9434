"""What tests and benchmarks share: processes that end with their starter, servers, and a whole stack."""
