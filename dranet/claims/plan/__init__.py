"""Device + link state + config -> :class:`~dranet.model.plan.AttachPlan`: the ordered steps, as data.

``device`` puts together what the other modules plan, each for one part of the config. ``pod`` and ``parents``
look across the plans of a pod and of a shared device.
"""
