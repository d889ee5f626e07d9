import pytest


@pytest.fixture(scope="session")
def tokenizers(pytestconfig):
    """The tokenizer of a published model family, by name; skips where `make templates` has not
    built it."""
    from real_tokenizers import Unavailable, real_tokenizer  # Transformers takes seconds to import

    made = {}

    def of(family):
        if family not in made:
            try:
                made[family] = real_tokenizer(family, pytestconfig.rootpath / "out" / "tokenizers")
            except Unavailable as why:
                pytest.skip(f"{family}: {why}")
        return made[family]

    return of
