"""Operations: retention, tiers, health of sources, alerts and metrics.

They work on the rows of every system: sweeps delete old rows, health changes write outbox rows, and
metrics summarise. What a system's rows mean is decided in that system.
What a system's rows mean does not belong here.
"""
