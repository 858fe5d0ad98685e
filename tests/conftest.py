"""What holds for every test."""

from hypothesis import HealthCheck, settings

# How long an example takes says more of the machine's load than of the test.
settings.register_profile("pageloom", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("pageloom")
