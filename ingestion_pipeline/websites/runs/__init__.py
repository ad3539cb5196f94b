"""Runs of analyses: started by polls, claimed phase by phase, written under their claims.

What a phase does is in `information`, `prompts` and `analysis`.
"""
