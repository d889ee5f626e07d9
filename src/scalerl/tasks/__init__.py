"""What is asked, and how an answer is checked.

>>> from scalerl.tasks import make_task
>>> task = make_task("running-sums")
>>> prompt = task.validation_prompts(1)[0]
>>> task.check(prompt, "no idea").reward
-1.0
"""

from scalerl.renamed import renamed_names
from scalerl.tasks.mixture import Mixture
from scalerl.tasks.registry import TASKS, make_task, task_of
from scalerl.tasks.task import Answer, AnswerScore, Prompt, Rules, Task, make_prompt

__all__ = [
    "TASKS",
    "Answer",
    "AnswerScore",
    "Mixture",
    "Prompt",
    "Rules",
    "Task",
    "make_prompt",
    "make_task",
    "task_of",
]

__getattr__ = renamed_names(__name__, {"Checked": "AnswerScore"})
