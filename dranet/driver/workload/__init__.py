"""What containers get for the programs in them: NCCL's files, variables, memory near the devices."""
