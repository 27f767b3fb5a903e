"""Preparation of a plan for training: records gathered and checked, model, loss and scores.

`program` puts it together; `records` brings batches to the device.
"""
