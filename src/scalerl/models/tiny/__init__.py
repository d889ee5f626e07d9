"""The tiny models that come with scalerl (`model.path = "tiny"` or `"tiny-noisy"`, in
`checkpoints/`), and the kit they were made with: their tokenizer, the teachers of the task
`running-sums`, the warm start."""
