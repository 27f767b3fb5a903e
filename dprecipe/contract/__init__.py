"""The contract of mechanism packages: the parts that each provides, and the questions that the packages above may ask.

`mechanism` declares a mechanism's traits and parts, `plan` what a run obeys, `facts` what a plan is made from,
`stages` paid steps before training, `certificate` a mechanism's part of the certificate. `table` lists the mechanisms,
by name: packages above this one never import one.
"""
