"""Tests of how the house stands: health, alerts, numbers."""
