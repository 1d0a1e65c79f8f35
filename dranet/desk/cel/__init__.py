"""Selectors of claims and DeviceClasses: does a device match, and what does an expression ask about?"""

from dranet.desk.cel.selector import DeviceSelector, DeviceValues

__all__ = ["DeviceSelector", "DeviceValues"]
