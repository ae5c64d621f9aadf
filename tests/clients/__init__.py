"""Real clients against a running appliance."""
