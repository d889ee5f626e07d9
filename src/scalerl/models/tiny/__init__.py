"""The tiny models that come with scalerl (`model.path = "tiny"` and others, in `checkpoints/`), and
the kit they were made with: their tokenizers, the teachers of `running-sums` and of the games, the
warm start."""
