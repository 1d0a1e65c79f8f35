"""The control plane around claims: scheduling as in ``allocation``, claims from templates, clean-up."""
