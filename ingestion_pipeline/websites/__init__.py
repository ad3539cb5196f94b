"""A website enters: what business it is, what its customers ask, how models answer them.

How visible the business is in those answers leaves, beside its competitors and over time.
Whose turn an analysis is (claims, leases) and what a model may cost do not belong here.
"""
