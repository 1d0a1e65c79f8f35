"""Scenarios: YAML files of steps and expectations, and how they are run and told."""
