"""Games that come with scalerl: multi-turn environments that a tiny model learns in minutes, each
with a highest pass rate that is known by construction."""
