"""What becomes of a claimed device: read its state, put it into a pod by a plan, give it back as it was.

``record`` reads at Prepare what the host gets back, ``attach`` applies a plan in the runtime's hook,
``detach`` and ``restore`` give back. The other modules are a kind of step each, or a question that these ask.
"""
