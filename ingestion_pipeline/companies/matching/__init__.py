"""Listings enter, each with what its board states; verdicts leave, and matches with their reason.

Filter, score and adjustments are pure functions of a listing, a profile and a moment. Where
listings come from, and how a company is analysed, does not belong here.
"""
