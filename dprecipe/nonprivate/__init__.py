"""Recipes without privacy, `mechanism: {kind: none}`: rules, plan and documents. No torch: training is in
`dprecipe.training.run.nonprivate`. Nothing here makes or checks a certificate, and nothing that does imports this.
"""
