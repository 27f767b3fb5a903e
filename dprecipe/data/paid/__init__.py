"""Steps of preprocessing that read private records and pay for it.

For each kind: what one unit contributes and how far that moves the sum (`moments`, `covariance`, `quantiles`,
`items`), the one place that adds noise (`release`), the public constants that come out (`constants`), and the map of
one record that they define (`apply`). `schema` has the recipe's blocks, `checks` what they say about one another. What
a release costs lies in `dprecipe.privacy`. numpy only.
"""
