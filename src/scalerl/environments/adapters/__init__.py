"""Adapters: environments of other libraries, none of which is a dependency."""
