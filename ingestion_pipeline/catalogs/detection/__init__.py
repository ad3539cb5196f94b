"""Recipe detection: known platforms first, then rules, then the votes of a language model.

Input: the first page of a catalogue and a way to fetch others. Output: a recipe with the evidence
for it, or the reason why none was found.
"""
