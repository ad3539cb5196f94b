"""Websites: which business a site belongs to, what its customers ask, and how models answer.

The result is how visible the business is in those answers, beside its competitors and over time.
Task claims and the budgets of models are handled elsewhere.
"""
