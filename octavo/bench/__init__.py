"""Measurements: throughput, latency, and how far from the machine's limits a step is."""
