"""Dagster definitions: assets, checks, jobs, schedules and sensors.

They translate ticks, partitions and run tags into calls of other packages, and the results into
runs, materializations and check results. No rules about sources, pages or records, and no SQL.
Rules and SQL do not belong here.
"""
