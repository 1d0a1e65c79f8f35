"""The fleet at a glance: what each node offers, who has it, and what is wrong, from API objects (pure)."""
