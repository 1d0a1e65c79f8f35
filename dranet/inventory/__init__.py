"""What the node offers: facts -> devices -> decisions -> pages of slices. Values in, values out."""
