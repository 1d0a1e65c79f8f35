"""What each pod really received: its GPUs, whoever gave them, and how near its devices are to them."""
