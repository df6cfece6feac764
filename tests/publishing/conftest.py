from tests.publishing.fake_hub import hub  # noqa: F401  # a fixture
