"""What every test shares."""

from hypothesis import settings

# A busy machine may be slow at any moment; a test that hangs is the timeout's to catch.
settings.register_profile("penstock", deadline=None, print_blob=True)
settings.load_profile("penstock")
