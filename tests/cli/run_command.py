"""A command of scalerl, run in the process of the test."""

import json

from scalerl.cli import main


def run(capsys, *arguments):
    """Exit code, standard output and standard error."""
    code = main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def as_json(capsys, *arguments):
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)
