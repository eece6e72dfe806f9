"""The one place that binds adapters to ports."""
