"""Compactors."""
