"""Tests of operations: health, alerts, retention, metrics."""
