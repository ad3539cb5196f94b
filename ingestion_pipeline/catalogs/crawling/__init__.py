"""The walk through a catalogue: pages that wait are claimed, visited, written, and lead to others.

An extraction with its root page enters; every page that its recipe leads to leaves, each once, with
its state. What a page says is `readings`, when the walk is over is `completing`.
"""
