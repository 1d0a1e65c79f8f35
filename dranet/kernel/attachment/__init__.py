"""What becomes of a claimed device: read its state, put it into a pod by a plan, give it back as it was.

``linkstate`` records at Prepare, ``attach`` applies a plan in the runtime's hook, ``detach`` and ``restore``
give back.
"""
