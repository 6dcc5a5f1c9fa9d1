"""Figures from stored results."""
