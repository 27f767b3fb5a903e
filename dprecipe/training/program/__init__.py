"""What a plan becomes before training: records gathered and checked, model, loss and scores.

`program` puts it together; `records` brings batches to the device.
"""
