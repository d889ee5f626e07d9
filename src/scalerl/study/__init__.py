"""Many runs: a set of recipes × seeds, run to tell them apart.

The directory of a study, which is its only state:

    study.toml          what was asked
    recipes/VARIANT.toml   the complete recipe of each variant, the reference first in `study.toml`
    runs/VARIANT-sSEED/    the run of each member, wherever it was made
    logs/VARIANT-sSEED.log what `scalerl train` said
"""
