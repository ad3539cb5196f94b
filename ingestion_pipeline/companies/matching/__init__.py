"""Evaluates listings against a profile: filter, score, decision, matches and notices.

Filter, score and adjustments are pure functions of a listing, a profile and a moment. Polling of
boards and analysis of companies belong to other packages.
"""
