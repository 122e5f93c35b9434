"""EC2's market: the catalogue of instance types, prices, and the offerings that follow from them."""
