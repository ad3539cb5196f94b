"""How the house is kept and how it stands: retention, tiers, health of sources, alerts, numbers.

Rows of every system enter; fewer rows, outbox rows of what changed for the worse or the better, and
tables and metrics for whoever operates it leave. What a system's rows mean is not decided here.
"""
