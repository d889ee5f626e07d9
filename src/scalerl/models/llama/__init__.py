"""Llama-shaped models, computed our own way on a CPU: to write (decode.py), to learn (packed.py).

Both give the model's own numbers, to rounding, and refuse every model that they have not compared
themselves with.
"""
