"""Selectors learned from pages that a model has read, and applied to other pages."""
