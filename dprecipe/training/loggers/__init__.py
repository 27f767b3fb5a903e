"""Loggers while a run trains: CSV, TensorBoard, MLflow and Weights & Biases. What a point is made of, and where points
go, belongs here; what a run measures does not."""
