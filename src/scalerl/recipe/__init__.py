"""What a run is: a typed, complete description, presets of the paper's recipes, and their
differences.

>>> from scalerl.recipe import Recipe, diff
>>> [d.path for d in diff(Recipe.load("scalerl"), Recipe.load("minimax-m1"))]
['batch.prompts', 'schedule.name']
"""

from scalerl.recipe.diff import Difference, diff
from scalerl.recipe.load import presets
from scalerl.recipe.schema import Recipe
from scalerl.recipe.variants import forward, leave_one_out

__all__ = ["Difference", "Recipe", "diff", "forward", "leave_one_out", "presets"]
