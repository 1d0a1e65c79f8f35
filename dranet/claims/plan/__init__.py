"""From a device, the state of its link and its config to an :class:`~dranet.model.plan.AttachPlan`."""
