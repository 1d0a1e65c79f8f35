"""What people run where their kubeconfig is: claims written, checked and explained; the doctor's reasoning.

It imports pure rooms and the API server's client only, so it runs on any system and without root
(``tests/desk/test_any_system.py``). Its commands are not in the image; the node's commands use ``doctor`` and
``redact``.
"""
