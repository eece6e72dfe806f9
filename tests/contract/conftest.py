"""Contract suites live in the package; their asserts are explained like those of tests."""

import pytest

pytest.register_assert_rewrite("holdfast.testing.journal_contract")
