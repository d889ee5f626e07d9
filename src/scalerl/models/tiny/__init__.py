"""The tiny model that comes with scalerl (`model.path = "tiny"`, in `checkpoint/`), and the kit it
was made with: its tokenizer, the noisy teacher of the task `running-sums`, the warm start."""
