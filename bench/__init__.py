"""Measurements: what an execution costs, beside the libraries that people would use instead."""
