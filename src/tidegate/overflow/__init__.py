"""Overflow."""
