"""The documentation as a static site, which Sphinx builds from ``docs`` (docs/decisions/056)."""
