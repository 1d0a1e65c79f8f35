"""The doctor's reasoning: checks that judge facts of a node, a module for each subject. Pure.

``dranet.cli.doctor`` reads the facts and prints the findings.
"""
