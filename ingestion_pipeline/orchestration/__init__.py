"""Dagster, which decides nothing: it carries decisions made in other rooms into runs and events.

Ticks, partitions and run tags enter; runs, materializations and check results leave. A rule about
sources, pages or records does not belong here, nor does SQL.
"""
