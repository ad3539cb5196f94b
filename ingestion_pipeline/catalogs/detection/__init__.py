"""How the recipe of a catalogue is found: known platforms first, then rules, then a model's votes.

The catalogue's first page enters, and a way to look at others; a recipe leaves with how it was
found, or a reason for people why there is none. What is done with a recipe does not belong here.
"""
