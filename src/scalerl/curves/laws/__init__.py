"""The laws a learning curve may follow, found by name. One file each, open to the outside."""

from scalerl.curves.laws.ensemble import ENSEMBLE, LINE
from scalerl.curves.laws.law import LAWS, Law, add_law
from scalerl.curves.laws.no_change import NO_CHANGE
from scalerl.curves.laws.power import POWER
from scalerl.curves.laws.sigmoid import SIGMOID

__all__ = ["ENSEMBLE", "LAWS", "LINE", "NO_CHANGE", "POWER", "SIGMOID", "Law", "add_law"]
