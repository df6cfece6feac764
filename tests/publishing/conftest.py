from tests.publishing.hub_server import hub  # noqa: F401  # a fixture
