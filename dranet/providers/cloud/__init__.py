"""Facts of clouds about the machine: one module for each, and how the cloud is recognised.

Names and types of attributes are DraNet's where DraNet has them, because users' selectors name them.
"""
