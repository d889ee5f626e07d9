import pytest


@pytest.fixture
def no_onednn():
    """Some virtual machines announce matrix units (AMX) that no process may use: BF16 products by
    way of oneDNN end in an illegal instruction there. Plain kernels will do for these sizes."""
    torch = pytest.importorskip("torch")
    with torch.backends.mkldnn.flags(enabled=False):
        yield
