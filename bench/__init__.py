"""Benchmarks: what an execution costs, compared with the libraries that people would use instead."""
