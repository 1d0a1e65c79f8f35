"""The control plane around claims: allocation by the documented rules, claims from templates, clean-up."""
