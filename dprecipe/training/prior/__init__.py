"""Learning from the images of a prior: two views of each image, and a loss that needs no labels. Nothing here reads
data."""
