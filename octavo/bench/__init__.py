"""Measurements: throughput and its reports."""
