"""How late changes are found, by whose rule, at equal requests: a replay of histories."""
