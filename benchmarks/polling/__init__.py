"""How late changes are detected, by whose rule, at equal requests: a replay of histories."""
