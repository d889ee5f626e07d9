"""Export the runs of an Aim repository to a CSV that scalerl reads.

python examples/aim_to_csv.py [REPOSITORY] > aim.csv      needs Aim (tried with 3.29)
scalerl fit aim.csv
"""

import csv
import sys

from aim import Repo

writer = csv.writer(sys.stdout)
writer.writerow(["run_id", "run_name", "split", "metric", "step", "value"])
for run in Repo(sys.argv[1] if len(sys.argv) > 1 else ".").iter_runs():
    for metric in run.metrics():
        subset = metric.context.to_dict().get("subset", "")
        for step, value in metric.dataframe()[["step", "value"]].itertuples(index=False):
            writer.writerow([run.hash, run.name, subset, metric.name, step, value])
