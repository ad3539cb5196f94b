"""The work on analyses: begun by polls, claimed phase by phase, written down under their claims.

What a phase does is not known here: that is `information`, `prompts` and `analysis`.
"""
