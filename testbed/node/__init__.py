"""The node: described hardware, its sysfs tree, links of the running kernel, the fabric behind them."""
