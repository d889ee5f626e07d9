"""What is said of a cluster that does not let a run in; Ray itself is not needed for it."""

from scalerl.placement.ray_cluster import _unreachable

WHERE = "ray://head:10001"


def test_a_busy_cluster_is_not_called_missing():
    said = _unreachable(WHERE, ConnectionAbortedError("Initialization failure from server:\nlate"))
    assert f"the Ray cluster at {WHERE} is there" in said and "placement.address=auto" in said
    said = _unreachable(WHERE, ConnectionError("ray client connection timeout"))
    assert f"there is no Ray cluster at placement.address={WHERE}" in said
