"""What containers get for the programs in them: device metadata, NCCL's files, variables, memory near the
devices.
"""
