"""The policy for programs that call a model themselves: sessions, and an OpenAI-compatible endpoint
on loopback."""
