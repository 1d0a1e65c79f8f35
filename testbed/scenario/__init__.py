"""Scenarios: YAML files of steps and expectations, how they run, and how they are shown."""
