"""What a run would cost, and what it would reach, before it is paid for: cost models, memory, a
simulation by the very loop, a search over placements. Imports torch only to simulate."""
